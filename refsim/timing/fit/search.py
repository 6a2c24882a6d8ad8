"""The least of a function of a few positive numbers, by pattern search: each is tried larger and smaller."""

from __future__ import annotations

from collections.abc import Callable

FIRST = 2.0
LAST = 1.005
"""Factors the search starts and ends with; where no step helps, the factor becomes its root."""


def least(
    loss: Callable[[dict[str, float]], float], start: dict[str, float], bounds: dict[str, tuple[float, float]]
) -> dict[str, float]:
    """Return the values, within ``bounds``, from which no single step makes ``loss`` smaller."""
    best = dict(start)
    lowest = loss(start)
    step = FIRST
    while step > LAST:
        tried = [
            best | {name: min(max(value * factor, bounds[name][0]), bounds[name][1])}
            for name, value in best.items()
            for factor in (step, 1 / step)
        ]
        value, candidate = min(((loss(c), c) for c in tried), key=lambda pair: pair[0], default=(lowest, best))
        if value < lowest:
            lowest = value
            best = candidate
        else:
            step = step**0.5
    return best
