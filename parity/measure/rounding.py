"""What rounding may come to: a bound from the distribution of an error over seeds, and those stored of TTNN cases.

    mock with numerics, seeds of weights and inputs --> an error of each --> worst x margin --> bound --> rounding.json
    case with numerics on: bounds of errors are the stored ones; of counts and of what is finite, the kind's own

The margin is three spreads of log10 over the seeds, at least ``MARGIN``: level fast is within 6 % of exact, but a
device's program may choose other K blocks and fusions, and with a destination of 16 bits K blocks of 256 and 608 alone
differ twofold (docs/numerics.md).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from parity.measure.thresholds import Threshold

STORED = Path(__file__).with_name("rounding.json")
"""Bounds by case and metric, by ``refsim numerics bounds``."""
MARGIN = 2.0
"""Least factor between the worst seed and the bound of 1 - PCC; of an error, whose square that is, its root."""
_FLOOR = 1e-9
"""Of 1 - PCC, below which a PCC of six or seven digits says nothing."""


@dataclass(frozen=True)
class Distribution:
    """What an error is predicted to be.

    Attributes:
        values: Of every seed.
        least: Margin between the worst seed and the bound, where the seeds do not spread more.
    """

    values: tuple[float, ...]
    least: float = MARGIN

    @property
    def middle(self) -> float:
        """Return the geometric mean."""
        return 10 ** statistics.fmean(self._logarithms)

    @property
    def spread(self) -> float:
        """Return the standard deviation of log10, 0 of one seed."""
        return statistics.stdev(self._logarithms) if len(self.values) > 1 else 0.0

    @property
    def margin(self) -> float:
        """Return the factor between the worst seed and the bound."""
        return max(self.least, 10 ** (3 * self.spread))

    @property
    def bound(self) -> float:
        """Return what rounding may come to."""
        return max(_FLOOR, max(self.values) * self.margin)

    @property
    def _logarithms(self) -> list[float]:
        return [math.log10(max(value, _FLOOR)) for value in self.values]


@dataclass(frozen=True)
class Bound:
    """The bound of one metric of one case.

    Attributes:
        limit: What is allowed.
        margin: Between the worst seed and the limit.
        reason: Why so much.
    """

    limit: float
    margin: float
    reason: str

    @classmethod
    def of(cls, metric: str, values: Iterable[float], numerics: str) -> Bound:
        """Return the bound that follows from the values of all seeds."""
        square = "one_minus" in metric
        distribution = Distribution(tuple(values), MARGIN if square else math.sqrt(MARGIN))
        low = min(distribution.values)
        high = max(distribution.values)
        count = len(distribution.values)
        why = "three spreads" if distribution.margin > distribution.least else "the least margin"
        reason = f"{low:.2g} to {high:.2g} predicted by numerics {numerics} over {count} seeds, times {why}"
        return cls(float(f"{distribution.bound:.4g}"), float(f"{distribution.margin:.3g}"), reason)


def is_error(threshold: Threshold) -> bool:
    """Whether a bound is one of an error, and not of a count, of replicas or of what is finite."""
    return 0 < threshold.limit < 1


def rounded(thresholds: tuple[Threshold, ...], bounds: Mapping[str, Bound]) -> tuple[Threshold, ...]:
    """Return a kind's bounds with those of errors as rounding has them; an error without one is not judged."""
    counts = [t for t in thresholds if not is_error(t)]
    errors = [t for t in thresholds if is_error(t) and t.metric in bounds]
    return (*(replace(t, limit=bounds[t.metric].limit, reason=bounds[t.metric].reason) for t in errors), *counts)


@cache
def stored() -> dict[str, dict[str, Bound]]:
    """Return the stored bounds, by case and metric."""
    cases = _read().get("cases", {})
    return {name: {metric: Bound(**bound) for metric, bound in bounds.items()} for name, bounds in cases.items()}


def _read() -> dict[str, Any]:
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}


def as_stored(bounds: Mapping[str, Mapping[str, Bound]], made: Mapping[str, Any]) -> str:
    """Return the text of the file with the bounds of more cases, or of the same ones again."""
    cases = _read().get("cases", {}) | {
        name: {metric: vars(bound) for metric, bound in of_case.items()} for name, of_case in bounds.items()
    }
    return json.dumps({"made": dict(made), "cases": dict(sorted(cases.items()))}, indent=1) + "\n"
