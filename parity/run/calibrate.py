"""Noise floors: how far the oracle in the storage dtype is from itself in a wider one, by every metric of a case.

    attention fp32     torch's attention in fp32    against float64
    attention bf16     torch's attention in bf16    against float64 on the same rounded inputs
    transformer fp32   the diffusers model in fp32  against float64
    transformer bf16   the diffusers model in bf16  against fp32 with the same rounded weights and inputs

The floor of a metric is the worst over the cases of the smoke suite and the seeds. No simulator takes part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from parity.cases import Case
from parity.cases.store import CheckpointStore
from parity.cases.suites import suite_cases
from parity.kinds import load
from parity.measure import metrics as m
from parity.measure.machine import versions
from parity.measure.thresholds import CALIBRATION, FROM_FLOOR, OF_PARTS
from refsim.files import output

METRICS = ("rel_rmse", "one_minus_pcc", "one_minus_pcc_shard", "one_minus_pcc_seam", *FROM_FLOOR, *OF_PARTS)
KINDS = ("attention", "transformer")
"""Kinds whose oracle is cheap enough in two dtypes; see :meth:`parity.kinds.base.CpuKind.floor`."""


@dataclass
class Floors:
    """What was measured, and with what.

    Attributes:
        floors: The oracle's own rounding: kind and dtype, then metric.
    """

    made: dict[str, Any]
    floors: dict[str, dict[str, float]]


def cases() -> list[Case]:
    """Return the cases that count: one per shape, family and dtype."""
    chosen: dict[Any, Case] = {}
    for case in suite_cases("smoke"):
        if case.kind in KINDS:
            chosen.setdefault((case.model, case.shape, case.family, case.dtype), case)
    return list(chosen.values())


def calibrate(seeds: int, say: Callable[[str], None] = lambda text: None) -> Floors:
    """Measure the floors over ``seeds`` seeds."""
    floors: dict[str, dict[str, float]] = defaultdict(dict)
    chosen = cases()
    measured = set()
    with CheckpointStore() as store:
        kinds = {name: load(name)(store) for name in KINDS}
        for seed in range(seeds):
            for case in chosen:
                floor = floors[f"{case.kind} {case.dtype}"]
                for metric, value in kinds[case.kind].floor(case, seed).items():
                    measured.add(case.id)
                    if metric in METRICS and value is not None:
                        floor[metric] = m.worst([floor.get(metric, 0.0), value])
            for case in chosen:
                kinds[case.kind].drop(case, seed)
            say(f"seed {seed + 1} of {seeds}")
    made = {"seeds": seeds, "cases": len(measured), "versions": versions(), "threads": torch.get_num_threads()}
    return Floors(made, {key: dict(sorted(floor.items())) for key, floor in sorted(floors.items())})


def write(floors: Floors) -> None:
    """Replace the stored floors."""
    output.write(CALIBRATION, (output.document(floors, 1) + "\n").encode())
