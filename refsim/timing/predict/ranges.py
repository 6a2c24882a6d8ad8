"""Ranges of predictions: four in five measured operations, and published pipelines, lie in theirs.

    class      ratio measured / predicted, 10th to 90th percentile of distinct operations that nothing was fitted on
    forward    a class errs alike in all its operations, two classes err apart: sqrt(sum (seconds x its half)^2)
    pipeline   no narrower than published / predicted of the chip's published pipelines and denoising loops, which have
               all that a list of operations lacks; and as much wider as one pipeline differs from run to run

A class that too few operations were left for, of its chip or of both, has those that parameters were fitted on beside
them; its range is *partly fitted* and says so. ``spread.py`` makes the numbers, ``spread.json`` keeps them.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from refsim.files.keys import Key
from refsim.timing.cost.fitted import FITTED
from refsim.timing.cost.power import H3_DENOISING

SPREADS = Path(__file__).with_name("spread.json")
LEAST = 5
"""Measured operations, or pipelines of other models, that a range of their own needs."""
SHARE = 0.8
REPEATS = ((11.58, 12.43), (136.27, 158.10), H3_DENOISING)
"""Seconds of one pipeline on one kind of system at different times: SD3.5-Large's denoising in ten runs of public CI on
a T3000, least and most (tt-metal pull request 39537), Wan2.2 at 720p on a Blackhole Galaxy in April and in September
(issue 55509), and MiniMax-H3 there."""


@dataclass(frozen=True)
class Spread:
    """``low`` and ``high``: measured / predicted of the 10th and the 90th percentile of ``shapes`` operations.

    ``fitted``: parameters were fitted on some of them.
    """

    low: float
    high: float
    shapes: int
    fitted: bool = False


@dataclass(frozen=True)
class Range:
    """Seconds that a run takes with a chance of four in five.

    Attributes:
        fitted: the classes among it whose range is partly from operations that parameters were fitted on.
    """

    KEYS = ("low", "high", "share", "fitted")

    low: float
    high: float
    fitted: Annotated[tuple[str, ...], Key("partly_fitted")] = ()

    @property
    def share(self) -> float:
        """How likely a measurement lies inside."""
        return SHARE

    def __str__(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"


def percentiles(ratios: list[float]) -> tuple[float, float]:
    """Return the 10th and the 90th percentile of measured / predicted; the prediction itself always lies between."""
    if len(ratios) == 1:
        return min(ratios[0], 1.0), max(ratios[0], 1.0)
    deciles = statistics.quantiles(ratios, n=10, method="inclusive")
    return min(deciles[0], 1.0), max(deciles[-1], 1.0)


@cache
def _stored() -> dict[str, Any]:
    return json.loads(SPREADS.read_text())


@cache
def get_spread(kind: str, arch: str = "blackhole") -> Spread:
    """Return the spread of a class of operations (``all``: of any) on a chip."""
    return Spread(**_stored()["classes"][arch][kind])


def store(spreads: dict[str, Any]) -> None:
    """Write what ``spread.py`` has found, and read it from now on."""
    SPREADS.write_text(json.dumps(spreads, indent=2) + "\n")
    _stored.cache_clear()
    calibration_version.cache_clear()


def measured_loops() -> list[dict[str, Any]]:
    """Return denoising loops that others measured, as ``spread.measured_loops`` has them."""
    return _stored()["loops"]


def pipeline_ratios(arch: str, without: str = "") -> list[float]:
    """Return published / predicted of the chip's published pipelines and loops, but for those of the model ``without``;
    of both chips if there are fewer than ``LEAST``.
    """
    rows = [row for row in (*_stored()["pipelines"], *_stored()["loops"]) if row["model"] != without]
    of_arch = [row["ratio"] for row in rows if row["arch"] == arch]
    return of_arch if len(of_arch) >= LEAST else [row["ratio"] for row in rows]


def forward(by_kind: Mapping[str, float], arch: str) -> Range:
    """Return the range of a sum of ``by_kind`` (seconds by class of operation); what is no class has none."""
    spreads = {kind: get_spread(kind, arch) for kind in by_kind if kind in _stored()["classes"][arch]}
    total = sum(by_kind.values())
    below = math.hypot(*(by_kind[kind] * (1 - s.low) for kind, s in spreads.items()))
    above = math.hypot(*(by_kind[kind] * (s.high - 1) for kind, s in spreads.items()))
    fitted = tuple(kind for kind, s in spreads.items() if s.fitted and by_kind[kind] > 0)
    return Range(max(total - below, 0.0), total + above, fitted)


def together(parts: Iterable[tuple[float, Range]]) -> Range:
    """Return the range of a sum of stages, each with its seconds and range, that err apart."""
    known = list(parts)
    total = sum(seconds for seconds, _ in known)
    below = math.hypot(*(seconds - r.low for seconds, r in known))
    above = math.hypot(*(r.high - seconds for seconds, r in known))
    fitted = tuple(dict.fromkeys(kind for _, r in known for kind in r.fitted))
    return Range(max(total - below, 0.0), total + above, fitted)


def widened(seconds: float, kernels: Range, arch: str, without: str = "") -> Range:
    """Return a range no narrower than how far published pipelines lay from their predictions (``pipeline_ratios``), and
    than measurements of one pipeline lie apart.
    """
    low, high = percentiles(pipeline_ratios(arch, without))
    below = seconds - min(kernels.low, seconds * low)
    above = max(kernels.high, seconds * high) - seconds
    again = seconds * repeated()
    return Range(seconds - math.hypot(below, again), seconds + math.hypot(above, again), kernels.fitted)


def repeated() -> float:
    """Return how far, as a share, measurements of one pipeline lie from their middle (``REPEATS``)."""
    return statistics.mean(math.sqrt(max(seconds) / min(seconds)) for seconds in REPEATS) - 1


def distinguishable(first: Mapping[str, float], second: Mapping[str, float], arch: str) -> bool:
    """Whether two sums of seconds by class differ by more than the model may err on their difference.

    A class errs by the same factor in both, so that what they have in common says nothing.
    """
    kinds = first.keys() | second.keys()
    apart = {kind: first.get(kind, 0.0) - second.get(kind, 0.0) for kind in kinds}
    halves = {kind: get_spread(kind, arch) for kind in kinds if kind in _stored()["classes"][arch]}
    error = math.hypot(*(apart[kind] * (s.high - s.low) / 2 for kind, s in halves.items()))
    return abs(sum(apart.values())) > error


@cache
def calibration_version() -> str:
    """Return what the stored parameters and ranges are called: the first eight digits of their SHA-256."""
    return hashlib.sha256(FITTED.read_bytes() + SPREADS.read_bytes()).hexdigest()[:8]
