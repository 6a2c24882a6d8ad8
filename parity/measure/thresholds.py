"""What a bound is, the bounds that several kinds of case share, the measured floors, and the judge.

The bounds of a kind stand in its module in ``parity/kinds``.

No bound here was chosen to let a case pass. Measured noise stands beside every record, so that a reader can see how
far a bound is from the rounding it has to leave room for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

Metrics = Mapping[str, "float | int | None"]
CALIBRATION = Path(__file__).with_name("calibration.json")
"""Noise floors: the oracle in the storage dtype against itself in a wider one, by ``refsim parity floors``."""

MARGIN = 8.0
"""A limit from a floor is this many times the floor. The simulator rounds in other places than the oracle, and a seed
not tried may be worse than those tried; a fault of the corpus is mostly a hundred times further."""


@dataclass(frozen=True)
class Threshold:
    """``metric <= limit``; a metric of None (nothing to measure) is allowed only where ``optional``."""

    metric: str
    limit: float
    reason: str
    optional: bool = False


FINITE = Threshold("non_finite", 0, "inputs are finite and softmax is bounded, so every output is finite")
SECONDS = Threshold("wrong_seconds", 0, "no stage takes less than nothing, nor all of them longer than the run")
REPLICAS = Threshold(
    "distinct_replicas",
    1,
    "every rank ends with the whole sample; two different ones mean that a copy went stale or was summed in "
    "another order",
)


def pcc(limit: float, reason: str) -> tuple[Threshold, ...]:
    """Bound 1 - PCC of the whole, of the worst shard and of the rows at borders alike."""
    return (
        Threshold("one_minus_pcc", limit, reason),
        Threshold("one_minus_pcc_shard", limit, f"{reason}; on the worst shard, which an average over shards hides"),
        Threshold(
            "one_minus_pcc_seam",
            limit,
            f"{reason}; on the rows next to a shard border, where masks and merges go wrong first",
            optional=True,
        ),
    )


BF16 = (
    *pcc(5e-4, "PCC 0.9995: bf16 keeps 8 bits, an operation rounds by 2e-3 and a block chains tens of them"),
    Threshold(
        "rel_rmse",
        3.2e-2,
        "the error that PCC 0.9995 stands for, sqrt(2 * 5e-4), so that a factor or an offset, which PCC cannot see, "
        "gets no more room than noise",
    ),
    Threshold("other_layout_rel_rmse", 3.2e-2, "as rel_rmse, between two parallel configurations", optional=True),
    FINITE,
)

SAME_ARITHMETIC = (
    Threshold(
        "rel_rmse",
        5e-6,
        "the same fp32 arithmetic in another order: 6e-8 per rounding, growing with the root of the sums' length "
        "and with depth; the oracle's own distance from float64 is a tenth of this bound",
    ),
    *pcc(1.25e-11, "half the square of the relative RMSE allowed, 5e-6"),
)


FROM_FLOOR = {
    "one_minus_ccc": "like PCC, but a factor or an offset on everything counts",
    "worst_token": "the worst token, which an average over all hides",
    "max_ulp": "the worst value, in units of its last place",
    "gain": "a factor on one head of one shard, which its noise hides from every other metric",
}
"""Metrics that have no bound but the one from their floor."""

PARTS_MARGIN = {"fp32": 1.8, "bf16": 1.4}
"""A limit from the floor of a metric in ``OF_PARTS`` is this many times the floor. Such a floor is already the worst of
some hundred thousand parts (layers, ranks, heads, samples, seeds), where another seed finds little that is worse: the
worst that the simulator had over 20 seeds of ``smoke`` is 1.4 times the floor in fp32 and 1.0 in bf16. With more room
in bf16 a factor of 3e-2 would pass, on what a layer adds its bias to or on one of two attentions that are summed."""

OF_PARTS = {
    "layer_gain": "a factor on what one layer took or gave on one rank",
    "layer_rel_rmse": "the error of one layer on one rank",
}
"""Metrics of the worst of many small parts, with no bound but the one from their floor; unmeasured at real widths."""


@cache
def calibration() -> dict[str, Any]:
    """Read ``calibration.json``: ``floors`` by ``kind dtype`` and metric, and what they were measured with."""
    return json.loads(CALIBRATION.read_text(encoding="utf-8"))


def limit_of(metric: str, floor: float) -> float:
    """Return the bound that follows from a floor; 1 - PCC and 1 - CCC grow with the square of an error."""
    return floor * (MARGIN**2 if metric.startswith("one_minus") else MARGIN)


def tightened(allowed: tuple[Threshold, ...], key: str) -> tuple[Threshold, ...]:
    """Return a kind's bounds in a storage dtype, with the measured floors of ``key`` (``"attention fp32"``).

    Those of ``allowed``, tightened to the margin above the floor where that is lower, and those of ``FROM_FLOOR``.
    """
    floors = calibration()["floors"].get(key, {})
    bounds = []
    for t in allowed:
        measured = floors.get(t.metric)
        if measured and limit_of(t.metric, measured) < t.limit:
            reason = f"{MARGIN:g} times the error of the oracle's own rounding; no more than {t.limit:g}: {t.reason}"
            t = replace(t, limit=limit_of(t.metric, measured), reason=reason)
        bounds.append(t)
    for metric, why in FROM_FLOOR.items():
        if metric in floors:
            reason = f"{MARGIN:g} times the error of the oracle's own rounding; {why}"
            bounds.append(Threshold(metric, limit_of(metric, floors[metric]), reason))
    for metric, why in OF_PARTS.items():
        if metric in floors:
            margin = PARTS_MARGIN[key.rpartition(" ")[2]]
            reason = f"{margin:g} times the worst part of the oracle's own rounding; {why}"
            bounds.append(Threshold(metric, margin * floors[metric], reason, optional=True))
    return tuple(bounds)


def judge(metrics: Metrics, thresholds: tuple[Threshold, ...]) -> list[str]:
    """Return what was exceeded, one sentence part each; empty if nothing was.

    A NaN fails (``not nan <= limit``), and so does a metric that should have been measured and was not.
    """
    failures = []
    for t in thresholds:
        value = metrics.get(t.metric)
        if value is None:
            if not t.optional:
                failures.append(f"{t.metric} was not measured")
        elif not value <= t.limit:
            failures.append(f"{t.metric} {value:.3g} is above {t.limit:.3g}")
    return failures
