"""The device wing's cases: ``tt_impl`` on a ttnn backend against ``refsim`` in the same storage dtype (bf16).

The reference wing is itself judged against diffusers (backend ``cpu``); here the question is whether the TTNN program
cuts, pads, orders and communicates the same way, so the two wings get the same checkpoint and the same inputs.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import safetensors.torch

from parity import metrics as m
from parity import oracles
from parity.cases import Case
from parity.checkpoints import CheckpointStore
from parity.comm import differences, unexplained
from parity.runners import Measured, token_shards
from refsim import api
from refsim.config import parse_parallel
from refsim.errors import UserError
from refsim.mesh import get_mesh
from tt_impl import launch


class WingRunner:
    """Runs cases on a ttnn backend, each in a process of its own; holds checkpoints over the cases of one suite."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._store = CheckpointStore()
        self._oracle = oracles.ModelOracle(self._store)
        self._beside = ThreadPoolExecutor(1)  # the device wing's process works while the reference's ranks do

    def __enter__(self) -> WingRunner:
        self._store.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._beside.shutdown()
        self._store.__exit__(*error)

    def drop(self, case: Case, seed: int) -> None:
        self._store.drop(case.model, seed)
        self._oracle.drop(case.model, seed)

    def run(self, case: Case, seed: int) -> Measured:
        """Run one case on both wings; whatever goes wrong is raised."""
        if case.kind != "wing":
            raise UserError(f"case {case.id} has no counterpart on backend {self._backend}.")
        started = time.monotonic()
        layout, spec = case.layout, get_mesh(case.mesh)
        config = parse_parallel(
            layout.parallel, spec, attention=layout.attention, ring=layout.ring, ulysses=layout.ulysses
        )
        folder, inputs = self._store.folder(case.model, seed), self._oracle.inputs(case, seed)
        with tempfile.TemporaryDirectory(prefix="refsim-wing-", ignore_cleanup_errors=True) as name:
            path = Path(name) / "inputs.safetensors"
            safetensors.torch.save_file({k: x.contiguous() for k, x in inputs.items()}, path)
            device = self._beside.submit(
                launch.execute,
                "tt_impl.pipelines.transformer:program",
                spec,
                config,
                {"checkpoint": str(folder), "inputs": str(path), "guidance": case.guidance},
                backend=self._backend,
                optable=self._backend == "ttnn-mock",
            )
            try:
                reference = api.run(
                    folder,
                    inputs=path,
                    mesh=spec,
                    parallel=layout.parallel,
                    attention=layout.attention,
                    ring=layout.ring,
                    ulysses=layout.ulysses,
                    guidance=case.guidance,
                    dtype="bf16",
                )
            finally:
                outcome = device.result()
        wing_s = time.monotonic() - started
        ours, ref = (oracles.tokens_of(t.float()) for t in (outcome.tensors["sample"], reference.tensors["sample"]))
        n = ref.shape[1]
        found = m.compare(ours, ref, token_shards(layout, n, n))
        if case.guidance is not None:
            guided = outcome.tensors["guided"].float(), reference.tensors["guided"].float()
            found["guided_one_minus_pcc"] = m.one_minus_pcc(*guided)
        group = outcome.collectives[: len(outcome.collectives) // config.cfg]
        comm = differences(reference.collectives, group)
        found["comm_unexplained"] = unexplained(comm)
        hazards = [str(hazard) for hazard in reference.hazards]
        extra = {
            "ran": outcome.ran,
            "communication": comm,
            "collectives": group,
            "ops": _summary(outcome.ops),
            "optable": outcome.optable,
            "resources": outcome.resources,
        }
        return Measured(found, {}, reference.bytes_by_collective, wing_s, hazards=hazards, extra=extra)


def _summary(ops: list[dict]) -> list[dict]:
    """Operations with equal name, shapes and dtype counted together, in order of first use."""
    counted: dict[str, dict] = {}
    for op in ops:
        key = f"{op['op']}{op['inputs']}{op['outputs']}{op['dtype']}"
        counted.setdefault(key, {k: op[k] for k in ("op", "inputs", "outputs", "dtype")} | {"count": 0})["count"] += 1
    return list(counted.values())
