"""What a finder says of a wrong answer: a place, errors by device, and features that faults are told apart by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from refsim.base.mesh import MeshSpec

if TYPE_CHECKING:
    from torch import Tensor

Features = dict[str, float]
"""Name -> value; the part before the first ``:`` says how values are compared, see :mod:`parity.explain.causes`."""

Range = tuple[int, int]
SHADES = " .:-=+*#%@"
_DECADES = 7
"""Shades of a map cover errors from 1e-7 to 1."""


@dataclass(frozen=True)
class Place:
    """Where an answer is wrong first.

    Attributes:
        tensor: name of the first wrong tensor.
        rank: the rank where its error is largest; None where no rank is known.
        ranks: all ranks where it is wrong.
        coord: (row, column) of ``rank`` on the mesh.
        heads, rows, columns: global ranges [start, stop) that hold all of the error on ``rank``; None if unknown.
        step: ring step at which ``rank`` attends to the keys that weigh wrong, -1 for the prompt's; None if unknown.
        after: the last tensor before it that is right.
        collective: the collective whose result is wrong while what went into it is right; empty if unknown.
        note: anything else, a clause.
        what: what ``tensor`` names: a tensor, or the collective of an event of the trace.
    """

    tensor: str
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    coord: tuple[int, int] | None = None
    heads: Range | None = None
    rows: Range | None = None
    columns: Range | None = None
    step: int | None = None
    after: str = ""
    collective: str = ""
    note: str = ""
    what: str = "tensor"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, with the sentence as ``text``."""
        return {**asdict(self), "text": str(self)}

    def __str__(self) -> str:
        parts = [f"first wrong {self.what}: {self.tensor}"]
        if self.rank is not None:
            others = f"; wrong on {_ranks(self.ranks)}" if len(self.ranks) > 1 else ""
            parts.append(f"rank {self.rank} at mesh {self.coord}{others}")
        for name in ("heads", "rows", "columns"):
            if (span := getattr(self, name)) is not None:
                parts.append(f"{name} {span[0]}..{span[1] - 1}")
        if self.step is not None:
            parts.append("keys of the prompt" if self.step < 0 else f"ring step {self.step}")
        if self.collective:
            parts.append(f"made by {self.collective}")
        if self.after:
            parts.append(f"right until {self.after}")
        return ", ".join([*parts, *([self.note] if self.note else [])])


@dataclass
class Evidence:
    """What a finder found in one answer.

    Attributes:
        place: where it is wrong first; None where nothing is above rounding.
        by_rank: largest error of each rank's part, in units of the reference's RMS; empty if unknown.
        error_map: name of the lines and of the columns, and the errors, a list of lines; empty if unknown.
        features: see :data:`Features`.
    """

    place: Place | None = None
    by_rank: list[float] = field(default_factory=list)
    error_map: dict[str, Any] = field(default_factory=dict)
    features: Features = field(default_factory=dict)


def _ranks(ranks: Sequence[int]) -> str:
    """Write ``ranks 0 to 3`` or ``ranks 0, 2``."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks))


def shaded(error_map: dict[str, Any]) -> str:
    """Write a map as text: a line per line, a shade per decade of error, ``!`` for what is not a number."""
    if not error_map:
        return ""
    lines = ["".join(map(_shade, values)) for values in error_map["errors"]]
    width = len(str(len(lines) - 1))
    shown = [f"  {i:>{width}} |{line}|" for i, line in enumerate(lines)]
    return "\n".join([f"{error_map['title']}; lines: {error_map['lines']}, columns: {error_map['columns']}", *shown])


def _shade(error: Any) -> str:
    if error is None:
        return " "
    if not math.isfinite(error := float(error)):
        return "!"
    level = (math.log10(error) + _DECADES) / _DECADES if error > 0 else 0
    return SHADES[min(max(round(level * (len(SHADES) - 1)), 0), len(SHADES) - 1)]


def error_map(title: str, lines: str, columns: str, errors: list[list[float | None]]) -> dict[str, Any]:
    """Return a map, a list of errors a line, None where there is no part."""
    return {"title": title, "lines": lines, "columns": columns, "errors": errors}


def device_map(mesh: MeshSpec, by_rank: Sequence[float]) -> dict[str, Any]:
    """Return the map of errors by device, as the mesh lies."""
    rows, columns = mesh.shape
    errors: list[list[float | None]] = [[by_rank[mesh.rank(row, c)] for c in range(columns)] for row in range(rows)]
    return error_map(f"error by device of {mesh}", "axis 0", "axis 1", errors)


def relative(error: Tensor, ref: Tensor) -> Tensor:
    """Return errors in units of the RMS of a reference (of 1 if that is 0); what is not a number becomes infinite."""
    scaled = error / (float(ref.square().mean().sqrt()) or 1.0)
    return scaled.where(scaled.isfinite(), math.inf)


def largest(error: Tensor) -> float:
    """Return the largest of some errors, 0 where there are none."""
    return float(error.max()) if error.numel() else 0.0


def span(indices: Sequence[int], offset: int = 0) -> Range | None:
    """Return [first, last + 1) of indices, None if there are none."""
    return (int(min(indices)) + offset, int(max(indices)) + 1 + offset) if len(indices) else None


def where(wrong: Tensor) -> list[int]:
    """Return indices of True in a vector."""
    return [int(i) for i in wrong.nonzero().flatten()]


def log_error(value: float | None, limit: float = 1.0) -> float:
    """Return log10 of an error in units of its limit, between -4 and 6; 6 for what is not a number."""
    if value is None or value == 0:
        return -4.0
    ratio = value / limit if limit else value
    return min(max(math.log10(abs(ratio)), -4.0), 6.0) if math.isfinite(ratio) else 6.0


def bounded(value: float, limit: float = 3.0) -> float:
    """Limit a value to between -limit and limit; limit for what is not a number."""
    return min(max(value, -limit), limit) if math.isfinite(value) else limit
