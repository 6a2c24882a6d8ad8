"""Runs cases of the ttnn kinds: ``tt_impl`` on a ttnn backend, some cases ahead of their turn, and refsim."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import safetensors.torch

from parity.cases import Case
from parity.cases.store import CheckpointStore
from parity.kinds.base import Measured
from parity.measure.digests import tensor_digests
from parity.measure.machine import missing_memory
from parity.measure.rounding import rounded, stored
from parity.measure.thresholds import Threshold
from parity.run.runner import Runner
from refsim.base import scratch
from refsim.base.options import Numerics
from tt_impl.run.launch import Outcome, Worker

WORKERS = 2
"""Device programs at a time. The reference's ranks run beside them; one program keeps less than one core busy."""


class TTNNRunner(Runner):
    """Runs cases on a ttnn backend, each in a process of its own, some ahead of their turn; a context manager.

    Checkpoints and inputs are kept until :meth:`drop`, the reference's answers until the case has run.

    Attributes:
        optable: whether records tell what every operation takes on a device.

    Args:
        numerics: how the mock rounds, see :attr:`refsim.base.options.RunOptions.numerics`.
    """

    family = "ttnn"
    optable = True

    def __init__(self, backend: str, store: CheckpointStore | None = None, *, numerics: Numerics = "off") -> None:
        super().__init__(store)
        self._backend = backend
        self._numerics = numerics
        self.elsewhere = f"has no counterpart on backend {backend}"
        self._inputs: dict[tuple[str, int], Path] = {}
        self._answers: dict[tuple[str, int], Any] = {}
        self._ahead: list[tuple[Case, int]] = []
        self._under_way: dict[tuple[str, int], Future] = {}

    def __enter__(self) -> TTNNRunner:
        super().__enter__()
        self._folder = scratch.Folder("parity-ttnn")
        self._threads = ThreadPoolExecutor(WORKERS)
        self._workers = [Worker().__enter__() for _ in range(WORKERS)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.__exit__(*error)  # which ends what a thread still waits for
        self._threads.shutdown()
        self._folder.cleanup()
        super().__exit__(*error)

    def warm_up(self) -> None:
        for worker in self._workers:
            worker.warm_up()

    def plan(self, jobs: Sequence[tuple[Case, int]]) -> None:
        self._ahead = list(jobs)

    def run(self, case: Case, seed: int) -> Measured:
        """Run one case on the ttnn backend and in refsim; whatever goes wrong is raised."""
        started = self._next(case, seed)
        try:
            self.reference(case, seed)
        finally:
            outcome, seconds = started.result()
        measured = self.measure(case, seed, outcome)
        measured.sim_s = seconds
        self._answers.pop((case.id, seed), None)
        return measured

    def _next(self, case: Case, seed: int) -> Future[tuple[Outcome, float]]:
        """Start this case unless it is under way, then those that follow it, as many as there are workers."""
        started = self._under_way.pop((case.id, seed), None) or self.start(case, seed)
        if (case, seed) in self._ahead:
            position = self._ahead.index((case, seed))
            for skipped, its_seed in self._ahead[:position]:
                if (future := self._under_way.pop((skipped.id, its_seed), None)) is not None:
                    future.cancel()
            del self._ahead[: position + 1]
        for following, its_seed in self._ahead[:WORKERS]:
            if (following.id, its_seed) not in self._under_way:
                if missing_memory(following):
                    break  # the gate skips it, or by its turn there is enough
                self._under_way[following.id, its_seed] = self.start(following, its_seed)
        return started

    def thresholds(self, case: Case) -> tuple[Threshold, ...]:
        """Return the kind's bounds; with numerics those of errors are what rounding comes to, if they are stored."""
        usual = super().thresholds(case)
        bounds = stored().get(case.id) if self._numerics != "off" else None
        return usual if bounds is None else rounded(usual, bounds)

    def start(self, case: Case, seed: int, *, fault: str = "") -> Future[tuple[Outcome, float]]:
        """Start the ttnn program of a case as soon as a worker is idle; its answer and the seconds it took.

        ``fault``: ``module:function`` of what the program's process enters around it, see :mod:`parity.faults.around`.
        """
        kind = self.kind(case)
        arguments = kind.arguments(case, seed) | {"inputs": str(self._inputs_of(case, seed))}
        optable = self.optable and kind.values and self._backend == "ttnn-mock" and not fault

        def work() -> tuple[Outcome, float]:
            worker = self._idle.get()
            began = time.monotonic()
            try:
                how = {"backend": self._backend, "fault": fault, "numerics": self._numerics}
                options = case.layout.options(case.dtype, **how)
                outcome = worker.execute(kind.program, options, arguments, values=kind.values, optable=optable)
                return outcome, time.monotonic() - began
            finally:
                self._idle.put(worker)

        return self._threads.submit(work)

    def reference(self, case: Case, seed: int) -> Any:
        """Return refsim's answer, computed once; its ranks are forked: call it from one thread only."""
        key = case.id, seed
        if key not in self._answers:
            self._answers[key] = self.kind(case).reference(case, seed, self._inputs_of(case, seed))
        return self._answers[key]

    def measure(self, case: Case, seed: int, outcome: Outcome) -> Measured:
        """Measure the ttnn program's answer against the reference's, and keep what ttnn built for it."""
        reference = self.reference(case, seed)
        metrics, extra = self.kind(case).measure(case, seed, outcome, reference)
        built: dict[str, Any] = {"ran": outcome.ran, "ops": _summary(outcome.ops)}
        built |= {"optable": outcome.optable, "resources": outcome.resources}
        if outcome.numerics:
            built |= {"numerics": outcome.numerics, "copies": [vars(one) for one in outcome.copies]}
        return Measured(
            metrics,
            bytes_by_collective=reference.bytes_by_collective,
            digests=tensor_digests(outcome.tensors),
            hazards=list(map(str, reference.hazards)),
            extra=extra | built,
        )

    def _inputs_of(self, case: Case, seed: int) -> Path:
        """Return a file with the case's inputs."""
        key = case.id, seed
        if key not in self._inputs:
            path = Path(self._folder.name) / f"{case.id}-{seed}.safetensors"
            drawn = self.kind(case).inputs(case, seed)
            safetensors.torch.save_file({name: x.contiguous() for name, x in drawn.items()}, path)
            self._inputs[key] = path
        return self._inputs[key]


def _summary(ops: list[dict]) -> list[dict]:
    """Count operations with equal name, shapes and dtype together, in order of first use."""
    counted: dict[str, dict] = {}
    for op in ops:
        key = f"{op['op']}{op['inputs']}{op['outputs']}{op['dtype']}"
        counted.setdefault(key, {k: op[k] for k in ("op", "inputs", "outputs", "dtype")} | {"count": 0})["count"] += 1
    return list(counted.values())
