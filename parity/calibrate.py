"""Noise floors: how far the oracle in the storage dtype is from itself in a wider one, by every metric of a case.

    attention fp32   torch's attention in fp32    against float64
    attention bf16   torch's attention in bf16    against float64 on the same rounded inputs
    model fp32       the diffusers model in fp32  against float64
    model bf16       the diffusers model in bf16  against fp32 with the same rounded weights and inputs

The floor of a metric is the worst over the cases of the smoke suite and the seeds. No simulator takes part.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from parity import metrics as m
from parity import oracles
from parity.cases import AttentionShape, Case, suite_cases
from parity.checkpoints import MODELS, CheckpointStore
from parity.gate import versions
from parity.inputs import attention_inputs, rounded
from parity.runners import DIGITS, joint_rows_per_head, token_shards
from parity.thresholds import CALIBRATION, FROM_FLOOR
from refsim import output

METRICS = ("rel_rmse", "one_minus_pcc", "one_minus_pcc_shard", "one_minus_pcc_seam", *FROM_FLOOR)


def cases() -> list[Case]:
    """Cases whose oracle is cheap in two dtypes: one per shape, family and dtype."""
    found: dict[Any, Case] = {}
    for case in suite_cases("smoke"):
        small = case.kind == "model" and MODELS[case.model].float64_noise
        if small or (case.kind == "attention" and case.shape.n <= 512):
            found.setdefault((case.model, case.shape, case.family, case.dtype), case)
    return list(found.values())


def calibrate(seeds: int, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure the floors over ``seeds`` seeds."""
    floors: dict[str, dict[str, float]] = defaultdict(dict)
    chosen = cases()
    with CheckpointStore() as store:
        oracle = oracles.ModelOracle(store)
        for seed in range(seeds):
            for case in chosen:
                floor = floors[f"{case.kind} {case.dtype}"]
                for metric, value in _noise(case, seed, oracle).items():
                    if metric in METRICS and value is not None:
                        floor[metric] = m.worst([floor.get(metric, 0.0), value])
            for model in {case.model for case in chosen if case.kind == "model"}:
                store.drop(model, seed)
                oracle.drop(model, seed)
            say(f"seed {seed + 1} of {seeds}")
    made = {"seeds": seeds, "cases": len(chosen), "versions": versions(), "threads": torch.get_num_threads()}
    return {"made": made, "floors": {key: dict(sorted(floor.items())) for key, floor in sorted(floors.items())}}


def write(found: dict[str, Any]) -> None:
    """Replace the stored floors."""
    output.write(CALIBRATION, (json.dumps(found, indent=1) + "\n").encode())


def _noise(case: Case, seed: int, oracle: oracles.ModelOracle) -> dict[str, Any]:
    digits = DIGITS[case.dtype]
    if case.kind == "attention":
        assert isinstance(case.shape, AttentionShape)
        tensors = rounded(attention_inputs(case.shape, case.family, seed), case.dtype)
        ref, _ = oracles.attention_float64(tensors, case.shape)
        answer = oracles.attention_noise(tensors, case.shape, case.dtype)
        shards = token_shards(case.layout, case.shape.n, case.shape.rows)
        return m.compare(joint_rows_per_head(answer), joint_rows_per_head(ref), shards, digits=digits)
    answer, ref = oracle.noise(case, seed), oracle.reference(case, seed)
    if answer is None:
        return {}
    a, b = oracles.tokens_of(answer), oracles.tokens_of(ref)
    if case.dtype == "fp32":
        a, b = b, a  # the reference is the fp32 answer, the noise the float64 one
    return m.compare(a, b, token_shards(case.layout, b.shape[1], b.shape[1]), digits=digits)
