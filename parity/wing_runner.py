"""The device wing's cases: ``tt_impl`` on a ttnn backend against ``refsim`` in the same storage dtype (bf16).

The reference wing is itself judged against diffusers (backend ``cpu``); here the question is whether the TTNN program
cuts, pads, orders and communicates the same way, so the two wings get the same checkpoint and the same inputs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import safetensors.torch
from torch import Tensor

from parity import metrics as m
from parity import oracles, wing_block, wing_decoding
from parity.cases import Case
from parity.checkpoints import MODELS, CheckpointStore
from parity.comm import differences, unexplained
from parity.gate import missing_memory
from parity.runners import Measured, token_shards
from refsim import api
from refsim.api.text import TextResult
from refsim.errors import UserError
from refsim.runtime import launch as reference_launch
from refsim.runtime.launch import Result
from tt_impl.launch import Outcome, Worker

WORKERS = 2
"""Device programs at a time. The reference's ranks run beside them; one program keeps less than one core busy."""


class WingRunner:
    """Runs cases on a ttnn backend, each in a process of its own, some ahead of their turn; a context manager.

    Checkpoints, inputs and the reference's answers are kept until :meth:`drop`.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._store = CheckpointStore()
        self._oracle = oracles.ModelOracle(self._store)
        self._decoding = wing_decoding.WingDecoding(self._store)
        self._inputs: dict[tuple[str, int], Path] = {}
        self._answers: dict[tuple[str, int], Result] = {}
        self._ahead: list[tuple[Case, int]] = []
        self._under_way: dict[tuple[str, int], Future] = {}

    def __enter__(self) -> WingRunner:
        self._store.__enter__()
        self._folder = tempfile.TemporaryDirectory(prefix="refsim-wing-", ignore_cleanup_errors=True)
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
        self._store.__exit__(*error)

    def plan(self, cases: Sequence[tuple[Case, int]]) -> None:
        """Tell which cases will be run, in this order, with which seeds, so that some can be started early."""
        self._ahead = list(cases)

    def drop(self, case: Case, seed: int) -> None:
        """Forget what only this case's checkpoint needs; called after the last case that uses it."""
        self._store.drop(case.model, seed)
        self._oracle.drop(case.model, seed)
        if case.kind == "wing_decode":
            self._decoding.drop(case, seed)

    def run(self, case: Case, seed: int) -> Measured:
        """Run one case on both wings; whatever goes wrong is raised."""
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

    def start(self, case: Case, seed: int, *, fault: str = "") -> Future[tuple[Outcome, float]]:
        """Start the device wing on a case as soon as a worker is idle; its answer and the seconds it took.

        ``fault``: ``module:function`` called in the program's process before it, see :mod:`parity.faults`.
        """
        if case.kind not in ("wing", "wing_block", "wing_decode"):
            raise UserError(f"case {case.id} has no counterpart on backend {self._backend}.")
        arguments: dict[str, Any] = {
            "checkpoint": str(self._store.folder(case.model, seed)),
            "inputs": str(self._inputs_of(case, seed)),
        }
        if case.kind == "wing":
            program = "tt_impl.pipelines.transformer:program"
            arguments["guidance"] = case.guidance
        elif case.kind == "wing_block":
            program = "tt_impl.pipelines.block:program"
            arguments["index"] = MODELS[case.model].block
        else:
            program = wing_decoding.PROGRAM
            arguments |= self._decoding.arguments(case, seed)
        optable = self._backend == "ttnn-mock" and not fault

        def work() -> tuple[Outcome, float]:
            worker = self._idle.get()
            began = time.monotonic()
            try:
                options = case.layout.options(case.dtype, backend=self._backend, fault=fault)
                outcome = worker.execute(program, options, arguments, optable=optable)
                return outcome, time.monotonic() - began
            finally:
                self._idle.put(worker)

        return self._threads.submit(work)

    def reference(self, case: Case, seed: int) -> Result | TextResult:
        """refsim's answer in the case's dtype, computed once; its ranks are forked: call it from one thread only."""
        if case.kind == "wing_decode":
            return self._decoding.reference(case, seed)
        key = case.id, seed
        if key not in self._answers:
            folder, inputs = self._store.folder(case.model, seed), self._inputs_of(case, seed)
            options = case.layout.options("bf16")
            if case.kind == "wing":
                self._answers[key] = api.run(folder, inputs=inputs, options=options, guidance=case.guidance)
            else:
                arguments = {"checkpoint": str(folder), "inputs": str(inputs), "index": MODELS[case.model].block}
                self._answers[key] = reference_launch.execute("refsim.pipelines.block:program", options, arguments)
        return self._answers[key]

    def measure(self, case: Case, seed: int, outcome: Outcome) -> Measured:
        """All metrics of the device wing's answer against the reference's."""
        reference = self.reference(case, seed)
        if case.kind == "wing_decode":
            found = self._decoding.compare(case, seed, outcome.report["texts"], outcome.tensors)
            extra = {"ran": outcome.ran, "collectives": outcome.collectives, "texts": outcome.report["texts"]}
            extra |= {"ops": _summary(outcome.ops), "optable": outcome.optable, "resources": outcome.resources}
            return Measured(found, {}, reference.bytes_by_collective, hazards=reference.hazards, extra=extra)
        config = case.layout.config()
        extra: dict[str, Any] = {}
        if case.kind == "wing":
            found = _compare_samples(case, outcome.tensors, reference.tensors)
        else:
            inputs = safetensors.torch.load_file(self._inputs_of(case, seed))
            shards = token_shards(case.layout, case.shape.n, case.shape.n)
            found, extra["streams"] = wing_block.compare(inputs, outcome.tensors, reference.tensors, shards)
        groups = config.cfg if case.kind == "wing" else 1
        group = outcome.collectives[: len(outcome.collectives) // groups]
        comm = differences(reference.collectives, group)
        found["comm_unexplained"] = unexplained(comm)
        extra |= {
            "ran": outcome.ran,
            "communication": comm,
            "collectives": group,
            "ops": _summary(outcome.ops),
            "optable": outcome.optable,
            "resources": outcome.resources,
        }
        hazards = [str(hazard) for hazard in reference.hazards]
        return Measured(found, {}, reference.bytes_by_collective, hazards=hazards, extra=extra)

    def _inputs_of(self, case: Case, seed: int) -> Path:
        """A file with the case's inputs."""
        key = case.id, seed
        if key not in self._inputs:
            path = Path(self._folder.name) / f"{case.id}-{seed}.safetensors"
            self._inputs[key] = path
            if case.kind == "wing_decode":
                self._decoding.write_inputs(case, seed, path)
                return path
            if case.kind == "wing":
                drawn = self._oracle.inputs(case, seed)
            else:
                features = MODELS[case.model].config["caption_projection_dim"]
                drawn = wing_block.block_inputs(case.shape, features, seed)
            safetensors.torch.save_file({k: x.contiguous() for k, x in drawn.items()}, path)
        return self._inputs[key]


def _compare_samples(case: Case, ours: dict[str, Tensor], ref: dict[str, Tensor]) -> dict[str, Any]:
    out_tokens, ref_tokens = (oracles.tokens_of(t["sample"].float()) for t in (ours, ref))
    n = ref_tokens.shape[1]
    found = m.compare(out_tokens, ref_tokens, token_shards(case.layout, n, n))
    if case.guidance is not None:
        found["guided_one_minus_pcc"] = m.one_minus_pcc(ours["guided"].float(), ref["guided"].float())
    return found


def _summary(ops: list[dict]) -> list[dict]:
    """Operations with equal name, shapes and dtype counted together, in order of first use."""
    counted: dict[str, dict] = {}
    for op in ops:
        key = f"{op['op']}{op['inputs']}{op['outputs']}{op['dtype']}"
        counted.setdefault(key, {k: op[k] for k in ("op", "inputs", "outputs", "dtype")} | {"count": 0})["count"] += 1
    return list(counted.values())
