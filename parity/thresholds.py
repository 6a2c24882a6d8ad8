"""What is allowed, each bound with its reason; and the judge that applies them.

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
"""Noise floors: the oracle in the storage dtype against itself in a wider one, by ``refsim parity calibrate``."""

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


_FINITE = Threshold("non_finite", 0, "inputs are finite and softmax is bounded, so every output is finite")
_REPLICAS = Threshold(
    "distinct_replicas",
    1,
    "every rank ends with the whole sample; two different ones mean that a copy went stale or was summed in "
    "another order",
)


def _pcc(limit: float, reason: str) -> tuple[Threshold, ...]:
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


_ATTENTION_FP32 = (
    Threshold(
        "rel_rmse",
        1e-6,
        "fp32 holds 6e-8 per rounding and a merge rounds a handful of times; an equal-weight merge, which scores "
        "PCC 0.9991, is off by 4e-2",
    ),
    *_pcc(1e-10, "a relative error of 1e-6 leaves 5e-13, a log-sum-exp kept in bf16 leaves 8e-5"),
    Threshold(
        "lse_rel_max",
        1e-6,
        "fp32 log-sum-exp, rounded by half an ulp (6e-8 of its size) on each of some 16 merges; one key too many "
        "among 4096 moves it by 3e-5",
    ),
    Threshold(
        "twin_max_abs",
        2e-6,
        "schemes differ only in the order of fp32 merges on outputs of order 1",
        optional=True,
    ),
    _FINITE,
)

_BF16 = (
    *_pcc(5e-4, "PCC 0.9995: bf16 keeps 8 bits, an operation rounds by 2e-3 and a block chains tens of them"),
    Threshold(
        "rel_rmse",
        3.2e-2,
        "the error that PCC 0.9995 stands for, sqrt(2 * 5e-4), so that a factor or an offset, which PCC cannot see, "
        "gets no more room than noise",
    ),
    Threshold("twin_rel_rmse", 3.2e-2, "as rel_rmse, between two parallel configurations", optional=True),
    _FINITE,
)

TABLE: dict[tuple[str, str], tuple[Threshold, ...]] = {
    ("attention", "fp32"): _ATTENTION_FP32,
    ("attention", "bf16"): (
        *_BF16,
        Threshold(
            "lse_rel_max",
            1e-5,
            "storage is bf16 but scores and log-sum-exp are fp32: 64 products per score round by at most 64 * 6e-8 "
            "of their size; a log-sum-exp kept in bf16 would be off by 2e-3",
        ),
    ),
    ("model", "fp32"): (
        Threshold(
            "rel_rmse",
            5e-6,
            "the same fp32 arithmetic in another order: 6e-8 per rounding, growing with the root of the sums' length "
            "and with depth; the oracle's own distance from float64 is a tenth of this bound",
        ),
        *_pcc(1.25e-11, "half the square of the relative RMSE allowed, 5e-6"),
        Threshold("guided_rel_rmse", 5e-6, "guidance is judged like the sample it is made of", optional=True),
        Threshold("twin_rel_rmse", 5e-6, "both must equal the same oracle, so they equal each other", optional=True),
        _REPLICAS,
        _FINITE,
    ),
    ("model", "bf16"): (
        *_BF16,
        Threshold(
            "guided_one_minus_pcc",
            5e-4,
            "guidance is judged like the sample it is made of",
            optional=True,
        ),
        _REPLICAS,
    ),
}

_DECODER_FP32 = (
    *(t for t in TABLE["model", "fp32"] if not t.metric.startswith(("guided", "twin"))),
    Threshold(
        "seam_ratio",
        1.5,
        "rounding is alike all over a picture, and its RMS over hundreds of pixels scatters by some percent; a border "
        "that is not exchanged, or whose padding is not zero, stands out a thousandfold",
        optional=True,
    ),
)
TABLE["decoder", "fp32"] = _DECODER_FP32
TABLE["encoder", "fp32"] = _DECODER_FP32[:-1]

TABLE["pipeline", "fp32"] = (
    Threshold(
        "rel_rmse",
        5e-6,
        "latents after every step as close as one forward of the transformer; guidance multiplies its error by a few, "
        "a step of the scheduler takes a part of it",
    ),
    Threshold("max_pixel_difference", 1, "a value at the border of two of 256 may be rounded to either"),
    Threshold("flat_picture", 0, "a grey picture would equal any other grey picture"),
    _REPLICAS,
    _FINITE,
)

TABLE["decode", "fp32"] = (
    Threshold("wrong_tokens", 0, "a drafter can change the speed, never the tokens: they are the target's alone"),
    Threshold("wrong_proposals", 0, "every proposal is what transformers' drafter says to the same hidden states"),
    Threshold("wrong_steps", 0, "the longest prefix that matches is accepted, and the target's own token"),
    Threshold("wrong_rows", 0, "both caches hold the rows of final tokens, no more and no fewer"),
    Threshold(
        "margin_max_abs",
        1e-4,
        "logits of up to 10 after some thirty sums in fp32, each rounded by 6e-8 of its size, leave some 1e-5; a head "
        "or an expert too few moves a margin by 1e-3 and more",
    ),
    Threshold("undecided_share", 0.5, "prompts whose logits tie within rounding decide nothing; most must decide"),
    _REPLICAS,
)

_WING = "PCC 0.999 between two bf16 programs that round in different places; either alone stays above 0.9999 of fp32"
TABLE["wing", "bf16"] = (
    *_pcc(1e-3, _WING),
    Threshold("rel_rmse", 4.5e-2, "the error that PCC 0.999 stands for, sqrt(2 * 1e-3), so that scale and shift count"),
    Threshold("guided_one_minus_pcc", 1e-3, "guidance is judged like the sample it is made of", optional=True),
    Threshold("comm_unexplained", 0, "the same collectives in the same order, on the same axis, with the same bytes"),
    _FINITE,
)

_ADDED = "PCC 0.9995 of what the block itself adds, its residual taken away, between two bf16 programs"
TABLE["wing_block", "bf16"] = (
    *(t for t in TABLE["wing", "bf16"] if not t.metric.startswith("guided")),
    *(replace(t, metric=f"added_{t.metric}") for t in _pcc(5e-4, _ADDED)),
    Threshold(
        "added_rel_rmse",
        3.2e-2,
        "the error that PCC 0.9995 stands for, sqrt(2 * 5e-4), so that a factor on what the block adds counts",
    ),
)


_BF16_ATTENTION = (
    "queries, keys and values are rounded to bf16 for TTNN's attention, by 2e-3 of their size, all the rest is fp32: "
    "1 - PCC of 1e-5 where attention is a part of the sum; PCC 0.9999 is asked for"
)
TABLE["wing_decode", "fp32"] = (
    Threshold("wrong_tokens", 0, "the tokens of the reference wing, which are those of the target alone"),
    Threshold("wrong_proposals", 0, "every proposal that is not a toss-up is the reference wing's"),
    Threshold("wrong_steps", 0, "the longest prefix that matches is accepted, and the target's own token"),
    Threshold("wrong_rows", 0, "both caches hold the rows of final tokens, no more and no fewer"),
    *(Threshold(f"{n}_one_minus_pcc", 1e-4, _BF16_ATTENTION) for n in ("layers", "last", "logits", "draft")),
)


FROM_FLOOR = {
    "one_minus_ccc": "like PCC, but a factor or an offset on everything counts",
    "worst_token": "the worst token, which an average over all hides",
    "max_ulp": "the worst value, in units of its last place",
}
"""Metrics that have no bound but the one from their floor."""


@cache
def calibration() -> dict[str, Any]:
    """What is in ``calibration.json``: ``floors`` by ``kind dtype`` and metric, and what they were measured with."""
    return json.loads(CALIBRATION.read_text(encoding="utf-8"))


def limit_of(metric: str, floor: float) -> float:
    """The bound that follows from a floor; 1 - PCC and 1 - CCC grow with the square of an error."""
    return floor * (MARGIN**2 if metric.startswith("one_minus") else MARGIN)


@cache
def thresholds_for(kind: str, dtype: str) -> tuple[Threshold, ...]:
    """The bounds of a kind of case (``attention``, ``model``) in a storage dtype (``fp32``, ``bf16``).

    Those of ``TABLE``, tightened to the margin above the measured noise floor where that is lower, and those of
    ``FROM_FLOOR``.
    """
    floors = calibration()["floors"].get(f"{kind} {dtype}", {})
    found = []
    for t in TABLE[kind, dtype]:
        measured = floors.get(t.metric)
        if measured and limit_of(t.metric, measured) < t.limit:
            said = f"{MARGIN:g} times the error of the oracle's own rounding; no more than {t.limit:g}: {t.reason}"
            t = replace(t, limit=limit_of(t.metric, measured), reason=said)
        found.append(t)
    for metric, reason in FROM_FLOOR.items():
        if metric in floors:
            said = f"{MARGIN:g} times the error of the oracle's own rounding; {reason}"
            found.append(Threshold(metric, limit_of(metric, floors[metric]), said))
    return tuple(found)


def judge(metrics: Metrics, thresholds: tuple[Threshold, ...]) -> list[str]:
    """What was exceeded, one sentence part each; empty if nothing was.

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
