"""Runs cases of the cpu kinds: refsim's ranks compute, an oracle in this process judges."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from parity.cases import Case
from parity.explain.places import Evidence
from parity.kinds.base import CpuKind, Measured
from parity.measure.digests import tensor_digests
from parity.measure.machine import cores
from parity.run.runner import Runner
from refsim.base.errors import UserError
from refsim.runtime import bfloat16
from refsim.runtime.launch import Result


class CpuRunner(Runner):
    """Runs cases on forked CPU ranks; keeps checkpoints and oracle answers over the cases of one suite."""

    family = "cpu"
    elsewhere = "is for the ttnn backends; name one with --backend"

    def __init__(self, kinds: dict[str, CpuKind] | None = None) -> None:
        super().__init__(kinds=kinds)
        self._threads = torch.get_num_threads()
        self._last: tuple[Case, int, Any] | None = None

    def __enter__(self) -> CpuRunner:
        super().__enter__()
        torch.set_num_threads(cores())  # ranks idle while the oracle computes, so it may have every core
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._threads)
        super().__exit__(*error)

    def run(self, case: Case, seed: int, **more: Any) -> Measured:
        """Run one case with ``seed``; whatever goes wrong is raised. ``more`` are further options of the run."""
        with bfloat16.products(case.dtype):  # for the oracle; ranks see to themselves
            return self._run(case, seed, more)

    def _run(self, case: Case, seed: int, more: dict[str, Any]) -> Measured:
        started = time.monotonic()
        kind = self.kind(case)
        self._last = None
        result = kind.run(case, case.layout, seed, **more)
        self._last = case, seed, result
        measured = Measured(
            kind.measure(case, seed, result),
            noise=kind.noise(case, seed),
            bytes_by_collective=result.bytes_by_collective,
            digests=tensor_digests(kind.answers(result)),
            sim_s=result.wall_s,
            hazards=list(map(str, result.hazards)),
            trace=getattr(result, "trace", []),
            extra=kind.extra(result),
        )
        if case.other_layout is not None:
            other = kind.run(case, case.other_layout, seed)
            measured.metrics |= kind.measure_other_layout(case, result, other)
            digests = tensor_digests(kind.answers(other))
            measured.digests |= {f"other_layout.{name}": digest for name, digest in digests.items()}
            measured.hazards += map(str, other.hazards)
            measured.sim_s += other.wall_s
        measured.oracle_s = time.monotonic() - started - measured.sim_s
        return measured

    def explain(self, case: Case, seed: int, limits: Mapping[str, float]) -> Evidence:
        with bfloat16.products(case.dtype):
            return self.kind(case).explain(case, seed, self.last(case, seed), limits)

    def last(self, case: Case, seed: int) -> Any:
        """Return the simulator's answer of the last run, which must have been of this case and seed."""
        if self._last is None or self._last[:2] != (case, seed):
            raise UserError(f"case {case.id} is not the one that ran last; run it first.")
        return self._last[2]

    def simulate(self, case: Case, seed: int, **more: Any) -> Result:
        """Run the simulator's part alone; its tensors are those whose bits count, ``more`` as in :meth:`run`."""
        kind = self.kind(case)
        result = kind.run(case, case.layout, seed, **more)
        if isinstance(result, Result):
            return result
        return Result(
            values=[{"replicas_equal": result.replicas_equal}],
            tensors=kind.answers(result),
            bytes_by_collective=result.bytes_by_collective,
            bytes_per_rank=[],
            hazards=result.hazards,
            wall_s=result.wall_s,
        )

    def drop(self, case: Case, seed: int) -> None:
        self._last = None
        super().drop(case, seed)
