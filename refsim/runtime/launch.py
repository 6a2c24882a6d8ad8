"""Run a program on every device of a mesh: ranks of our own, or the ranks torchrun started.

Embedded: the first call warms up a fork server, ranks are forked from it and kept for the next call.
Under torchrun (single or many hosts) each process is a rank already: it joins the group torchrun describes, runs the
same program, and only rank 0 gets the answer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.base import processes
from refsim.base.errors import UserError
from refsim.base.finite import NotFinite
from refsim.base.jobs import Job
from refsim.base.mesh import MeshSpec
from refsim.base.options import RunOptions
from refsim.base.padded import Padded
from refsim.base.torchrun import is_main as is_main
from refsim.base.torchrun import under_torchrun as under_torchrun

if TYPE_CHECKING:
    from torch import Tensor

    from refsim.runtime.watch.hazards import Hazard


@dataclass
class Result:
    """The answer of a program.

    Attributes:
        values: the JSON value of every rank; ``value`` is rank 0's.
        tensors: rank 0's tensors.
        bytes_by_collective: bytes sent, summed over ranks, keyed ``collective@group``.
        bytes_per_rank: the same for each rank.
        collectives: those rank 0 took part in, in order: name, mesh axis, bytes it brought, group.
        hazards: uses of device buffers that nothing keeps apart; empty in a correct program.
        padded: what rank 0 padded.
        rounded_once: in a run with ``device_numerics``, ops that rank 0 rounded once for want of a rule, counted by
            name.
        not_finite: per rank, the first activation that held NaN or infinity; padding may.
        trace: events of all ranks, empty unless asked for.
        transport: what moved the tensors between ranks: ``gloo`` or ``shared``.
        wall_s: seconds from handing out the job to the last rank's reply.
    """

    values: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    bytes_by_collective: dict[str, int]
    bytes_per_rank: list[dict[str, int]]
    collectives: list[dict[str, Any]] = field(default_factory=list)
    hazards: list[Hazard] = field(default_factory=list)
    padded: list[Padded] = field(default_factory=list)
    rounded_once: dict[str, int] = field(default_factory=dict)
    not_finite: list[NotFinite | None] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    wall_s: float = 0.0
    transport: str | None = None

    @property
    def value(self) -> dict[str, Any]:
        return self.values[0]


def ranks_here(options: RunOptions) -> int:
    """Return how many ranks of a run hold their tensors in this machine's memory.

    Under torchrun those of this host; on a ttnn backend at least the one copy that the host reads back.
    """
    if options.backend != "cpu":
        return 1
    return (
        int(os.environ.get("LOCAL_WORLD_SIZE", options.mesh.num_devices))
        if under_torchrun()
        else options.mesh.num_devices
    )


def warm_up() -> None:
    """Start importing torch in the fork server now, while this process does something else."""
    if not under_torchrun():
        from refsim.runtime.ranks.pool import ForkServer

        ForkServer.get()


def fork_server(*modules: str) -> None:
    """Import what ranks need, and ``modules``, here, and fork the process that ranks are forked from off this one.

    Everything is imported once instead of twice. Where this process has several threads, or the system is not Linux,
    the fork server is a process of its own that imports the same.
    """
    from refsim.runtime.ranks.forkserver import PRELOAD
    from refsim.runtime.ranks.pool import ForkServer

    with processes.one_thread():
        for module in (*PRELOAD, *modules):
            with contextlib.suppress(ImportError):  # who needs it will say so
                importlib.import_module(module)
    ForkServer.get(*modules, forked=hasattr(os, "pidfd_open") and processes.threads() == 1)


def shut_down() -> None:
    """End the ranks and the process they are forked from, which otherwise happens when this process ends.

    A rank of torchrun's only says that it ends by itself.
    """
    if "refsim.runtime.ranks.joined" in sys.modules:
        from refsim.runtime.ranks import joined

        joined.leave()
    if "refsim.runtime.ranks.pool" in sys.modules:
        from refsim.runtime.ranks.pool import ForkServer

        if ForkServer._current is not None:
            ForkServer._current.close()


def end_ranks() -> None:
    """End the ranks that are kept for the next job, and with them what memory they hold; new ones are forked then."""
    if "refsim.runtime.ranks.pool" in sys.modules:
        from refsim.runtime.ranks.pool import close_all

        close_all()


def scratch_dir() -> Path | None:
    """Return a folder that goes away with this process, however it ends; None (the system's) under torchrun."""
    if under_torchrun():
        return None
    from refsim.runtime.ranks.pool import ForkServer

    return ForkServer.get().run_dir


def execute(
    program: str, options: RunOptions, arguments: dict[str, Any], *, progress: Callable[[int, int], None] | None = None
) -> Result | None:
    """Run ``program`` (``module:function``) on every device of a mesh; None on torchrun's ranks above 0.

    Args:
        options: the mesh, the factors and how the run is bounded; the ranks find them as ``device.options``.
        arguments: JSON values handed to the program on every rank.
        progress: called now and then with the number of the program's steps done and of all; not under torchrun.
    """
    from refsim.runtime.watch.hazards import Hazard

    job = Job(program, options, arguments)
    started = time.monotonic()
    if under_torchrun():
        header, tensors = _as_torchrun_rank(job, options.mesh)
        if not is_main():
            return None
    else:
        from refsim.files.tensor_file import TensorFile
        from refsim.runtime.ranks.pool import pool

        answer = pool(options.mesh.num_devices).run(job, progress)
        header = answer.header
        tensors = {}
        for file in answer.files:
            tensors = TensorFile(f"/dev/fd/{file.fileno()}").all()
            file.close()
    return Result(
        values=header["results"],
        tensors=tensors,
        bytes_by_collective=header["bytes"],
        bytes_per_rank=header["bytes_per_rank"],
        collectives=header["collectives"],
        padded=[Padded(**entry) for entry in header["padded"]],
        rounded_once=header["rounded_once"],
        not_finite=[entry and NotFinite.from_json(entry) for entry in header["not_finite"]],
        hazards=[Hazard(**hazard) for hazard in header["hazards"]],
        trace=header["trace"],
        wall_s=time.monotonic() - started,
        transport=header["transport"],
    )


def _as_torchrun_rank(job: Job, mesh: MeshSpec) -> tuple[dict[str, Any], dict[str, Tensor]]:
    import torch

    from refsim.runtime.ranks import joined
    from refsim.runtime.ranks.worker import run_job

    world_size = int(os.environ["WORLD_SIZE"])
    if world_size != mesh.num_devices:
        raise UserError(
            f"torchrun started {world_size} ranks but mesh {mesh} has {mesh.num_devices} devices; "
            f"use `--nproc-per-node {mesh.num_devices}` (or that many over all hosts)."
        )
    if not torch.distributed.is_initialized():
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", world_size))))
    host = joined.join()
    return run_job(job, None) if host is None else host.run(job)
