"""Run programs of the device backend, each in a process of its own; whatever happens to that process is one answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.base import processes, scratch
from refsim.base.errors import RankFailure, UserError
from refsim.base.jobs import Job
from refsim.base.options import RunOptions
from refsim.base.padded import Padded
from tt_impl.run.copies import Copies
from tt_impl.run.progress import read as read_progress

if TYPE_CHECKING:
    from torch import Tensor

_TICK_S = 0.2
"""How often a running program is asked how far it is."""

KINDS = {"ttnn-mock": "mock", "ttnn-sim": "sim", "ttnn-device": "device"}


@dataclass
class Outcome:
    """What a program gave.

    Attributes:
        tensors: its answer.
        ran: one line: which kind of mesh ran it, grid, fabric.
        ops: every device operation in order, with shapes and dtype.
        collectives: those that communicate: name, mesh axis, bytes held by a device before it.
        padded: what the program padded.
        copies: tensors that devices hold whole and rounded otherwise, with how far apart.
        numerics: how the mock rounded: ``level``, and by name how often operations were ``rounded`` as their kernels
            do or ``once``; empty if it was not to.
        report: what else the program has to say, JSON values.
        optable: where it was asked for, one row per different device operation, see ``tt_impl.trace.optable.OpTable``.
        resources: with ``optable``, its summary: operations, fidelities, peak L1 of a core, peak DRAM of a device.
    """

    tensors: dict[str, Tensor]
    ran: str
    ops: list[dict[str, Any]]
    collectives: list[dict[str, Any]]
    padded: list[Padded] = field(default_factory=list)
    copies: list[Copies] = field(default_factory=list)
    numerics: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    optable: list[dict[str, Any]] | None = None
    resources: dict[str, Any] | None = None


class Worker:
    """A warm process that has imported ttnn and forks a process of its own for every program; a context manager.

    Importing takes longer than most programs, and nothing but the import is shared: no two programs meet in a process,
    and one that crashes or hangs leaves the next one as it would have found things. One thread at a time.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._folder: scratch.Folder | None = None

    def __enter__(self) -> Worker:
        self._folder = scratch.Folder("ttnn")
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        self._folder.cleanup()

    def warm_up(self) -> None:
        """Start the process, unless it runs; otherwise the first program does."""
        if self._process is None:
            self._start()

    def execute(
        self,
        program: str,
        options: RunOptions,
        arguments: dict[str, Any],
        *,
        values: bool = True,
        optable: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Outcome:
        """Run ``program`` (``module:function``) on a mesh of a ttnn backend.

        Args:
            options: the mesh, the factors and the backend (``ttnn-mock``, ``ttnn-sim`` or ``ttnn-device``); ``fault``
                is a ``module:function`` called before the program, to put a mistake into ``tt_impl``.
            arguments: JSON values; ``checkpoint`` and ``inputs`` are paths.
            values: on a mock mesh, compute values; without them what is read from a device is zero.
            optable: note what every operation takes on a device, in ``Outcome.optable`` and ``Outcome.resources``.
            progress: called with the number of the program's steps that are done and of all of them, whenever it
                reports one; each begins the timeout anew.

        Raises:
            UserError: a mistake of the user.
            RankFailure: ttnn refused the program (its own message), crashed (named by the operation) or hung.
        """
        with tempfile.TemporaryDirectory(dir=self._folder.name, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            message = {
                "job": Job(program, options, arguments).to_json(),
                "kind": KINDS[options.backend],
                "values": values,
                "optable": optable,
            }
            (folder / "job.json").write_text(json.dumps(message), encoding="utf-8")
            code = self._run(folder, options.timeout_s, progress)
            return _read(folder, code, folder / "log" if (folder / "log").exists() else self._log)

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "log"

    def _run(self, folder: Path, timeout_s: float, progress: Callable[[int, int], None] | None) -> int:
        """Exit code of the job's process, or of the worker itself if that ended first."""
        self.warm_up()
        try:
            self._process.stdin.write(f"{folder}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its exit code is read below
        done = False
        try:
            if not self._wait(folder, timeout_s, progress):
                raise RankFailure(f"ttnn gave no answer in {timeout_s:g} s; it was in {_last(folder)}.", rank=0)
            answer = self._process.stdout.readline()
            done = bool(answer)
            return int(answer) if done else self._process.wait()
        finally:
            if not done:
                self._stop()

    def _wait(self, folder: Path, timeout_s: float, progress: Callable[[int, int], None] | None) -> bool:
        """Whether the process answered, no more than ``timeout_s`` after the last step that its program reported."""
        reached = None
        until = time.monotonic() + timeout_s
        while not select.select([self._process.stdout], [], [], max(0.0, min(_TICK_S, until - time.monotonic())))[0]:
            if (steps := read_progress(folder)) not in (None, reached):
                reached = steps
                until = time.monotonic() + timeout_s
                if progress is not None:
                    progress(*steps)
            if time.monotonic() >= until:
                return False
        return True

    def _start(self) -> None:
        with self._log.open("wb") as log:
            self._process = processes.start(
                "tt_impl.run.worker",
                self._folder.name,
                env={
                    "TMPDIR": self._folder.name,  # what it leaves behind when it is killed goes with the folder
                    # Values of small tensors: threads that spin at the end of a loop cost far more than it.
                    "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def _stop(self) -> None:
        process = self._process
        self._process = None
        if process is None:
            return
        processes.end(process)
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def execute(program: str, options: RunOptions, arguments: dict[str, Any], **more: Any) -> Outcome:
    """:meth:`Worker.execute` in a worker that is started for it alone."""
    with Worker() as worker:
        return worker.execute(program, options, arguments, **more)


def _read(folder: Path, code: int, log: Path) -> Outcome:
    import safetensors.torch

    path = folder / "answer.json"
    if not path.exists():
        how = processes.how_it_ended(code)
        tail = log.read_text(errors="replace")[-2000:]
        raise RankFailure(f"the ttnn process {how} in {_last(folder)}.", rank=0, traceback=tail)
    answer = json.loads(path.read_text(encoding="utf-8"))
    if not answer["ok"]:
        if answer["kind"] == "user":
            raise UserError(answer["message"])
        message = " ".join(answer["message"].partition("backtrace:")[0].split())
        raise RankFailure(f"ttnn failed in {_last(folder)}: {message}", rank=0, traceback=answer["traceback"])
    tensors = safetensors.torch.load_file(folder / "out.safetensors")
    padded = [Padded(**entry) for entry in answer["padded"]]
    differing = [Copies(**entry) for entry in answer["copies"]]
    keys = ("ran", "ops", "collectives", "numerics", "report", "optable", "resources")
    return Outcome(tensors, padded=padded, copies=differing, **{key: answer[key] for key in keys if key in answer})


def _last(folder: Path) -> str:
    path = folder / "last_op"
    # What stands behind the first line is left from an operation with a longer one.
    return path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else "opening the mesh"
