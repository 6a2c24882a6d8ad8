"""Two runs of parity beside each other: what got worse, by how much, and whether that is more than noise.

A metric that grew is noise where it is still no larger than the oracle's own rounding: the measured floor of its kind
and dtype (``calibration.json``), or what the record itself says of the oracle's noise. Anything else that grew by more
than ``LEAST`` counts as worse, and so does a limit that was loosened. Without ``--metrics``, ``refsim parity compare``
asks another question: whether the bits are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

from parity.measure.records import VERDICTS
from parity.measure.thresholds import calibration
from parity.report.compare import Pairs
from refsim.files import tables
from refsim.files.keys import Key

LEAST = 1.05
"""A metric that grew by less than this factor is unchanged."""
BETTER_FIRST = ("passed", "skipped", "failed")
COLUMNS = ("case", "what", "before", "after", "factor", "noise")
"""Of the table: id; metric, ``verdict``, ``limit of METRIC`` or ``bytes of COLLECTIVE``; both values; after over before
(None where there is none); whether it is noise."""


@dataclass(frozen=True)
class Row:
    """One change of one case.

    Attributes:
        case: id.
        what: see :data:`COLUMNS`.
        before, after: numbers, or verdicts.
        factor: after / before; None where that says nothing.
        noise: the change is within the oracle's own rounding.
        worse: it grew, or the verdict fell.
    """

    case: str
    what: str
    before: Any
    after: Any
    factor: float | None
    noise: bool
    worse: bool

    @property
    def loosened(self) -> bool:
        """Whether it is a limit that allows more than before."""
        return self.worse and self.what.startswith("limit of ")

    def __str__(self) -> str:
        before, after = _values(self)
        return f"{self.what}{' loosened' * self.loosened} {before} -> {after}"


@dataclass
class Diff:
    """What changed between two runs.

    Attributes:
        compared: cases that both have.
        rows: all changes, the worst that is not noise first.
        only_before, only_after: ids of cases that one run has.
        seconds: of the simulator in both runs, over the cases that both have.
    """

    KEYS = ("compared", "worsened", "rows", "only_before", "only_after", "seconds", "exit_code")

    compared: int
    rows: list[Row] = field(default_factory=list)
    only_before: list[str] = field(default_factory=list)
    only_after: list[str] = field(default_factory=list)
    seconds: Annotated[tuple[float, float], Key("sim_s")] = (0.0, 0.0)

    @property
    def worse(self) -> list[Row]:
        """What got worse by more than noise."""
        return [row for row in self.rows if row.worse and not row.noise]

    @property
    def worsened(self) -> Annotated[int, Key("worse")]:
        """How many rows are worse by more than noise."""
        return len(self.worse)

    @property
    def exit_code(self) -> int:
        """1 if something got worse, if a case is gone, or if nothing could be compared."""
        return int(bool(self.worse or self.only_before) or not self.compared)


def diff(before: dict[str, Any], after: dict[str, Any]) -> Diff:
    """Find what changed between two runs as :func:`parity.report.compare.read` gives them."""
    pairs = Pairs.of(before, after)
    rows = [row for a, b in pairs.both for row in _rows(a, b)]
    return Diff(
        compared=len(pairs.both),
        rows=sorted(rows, key=lambda row: (not row.worse, row.noise, -(row.factor or math.inf))),
        only_before=pairs.only_first,
        only_after=pairs.only_second,
        seconds=(sum(a["sim_s"] for a, _ in pairs.both), sum(b["sim_s"] for _, b in pairs.both)),
    )


def _rows(a: dict[str, Any], b: dict[str, Any]) -> list[Row]:
    rows = []
    name = b["id"]
    if a["verdict"] != b["verdict"]:
        fell = BETTER_FIRST.index(b["verdict"]) > BETTER_FIRST.index(a["verdict"])
        rows.append(Row(name, "verdict", a["verdict"], b["verdict"], None, False, fell))
    for metric in sorted(a["thresholds"].keys() & b["thresholds"].keys()):
        old, new = (number(r["thresholds"][metric]) for r in (a, b))
        if old != new:
            rows.append(Row(name, f"limit of {metric}", old, new, _factor(old, new), False, new > old))
    for metric in sorted(b["thresholds"]):
        old, new = (number(r["metrics"].get(metric)) for r in (a, b))
        if (old is None and new is None) or old == new:
            continue
        row = _metric(name, metric, (old, new), b)
        rows += [row] if row else []
    for key in sorted(a["bytes_by_collective"].keys() | b["bytes_by_collective"].keys()):
        old, new = (r["bytes_by_collective"].get(key, 0) for r in (a, b))
        if old != new:
            rows.append(Row(name, f"bytes of {key}", old, new, _factor(old, new), False, new > old))
    return rows


def _metric(case: str, metric: str, values: tuple[float | None, float | None], record: dict[str, Any]) -> Row | None:
    old, new = values
    if new is None or old is None:  # no longer measured, or measured now
        return Row(case, metric, old, new, None, False, new is None)
    factor = _factor(old, new)
    if factor is not None and 1 / LEAST <= factor <= LEAST:
        return None
    floors = calibration()["floors"].get(f"{record['kind']} {record['dtype']}", {})
    noise = max([number(x) or 0.0 for x in (floors.get(metric), record["noise"].get(metric))])
    return Row(case, metric, old, new, factor, new <= noise, not new <= old)


def number(value: Any) -> float | None:
    """Read a number of a record, where what is not finite is a word."""
    return None if value is None else float(value)


def _factor(old: float, new: float) -> float | None:
    return new / old if old and math.isfinite(old) and math.isfinite(new) else None


def markdown(changes: Diff, *, most: int = 50) -> str:
    """Write the changes as a table, what is worse by more than noise first, and a sentence with the counts."""
    lines = []
    if changes.rows:
        lines.append(tables.as_markdown(map(_cells, changes.rows[:most]), COLUMNS))
        if len(changes.rows) > most:
            lines.append(f"\n{len(changes.rows) - most} more changes are in the JSON.")
        lines.append("")
    for which, names in (("before", changes.only_before), ("after", changes.only_after)):
        lines += [f"- `{name}`: only {which}" for name in names]
    noise = sum(row.worse and row.noise for row in changes.rows)
    better = sum(not row.worse for row in changes.rows)
    old, new = changes.seconds
    lines.append(
        f"{changes.compared} cases compared: {len(changes.worse)} changes for the worse, {noise} more within noise, "
        f"{better} for the better; simulator {old:.1f} s before, {new:.1f} s after."
    )
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    before, after = _values(row)
    noise = "noise" if row.noise else "worse" if row.worse else "better"
    return [f"`{row.case}`", row.what, before, after, "-" if row.factor is None else f"{row.factor:.2f}", noise]


def _values(row: Row) -> tuple[str, ...]:
    return tuple(x if x in VERDICTS else "-" if x is None else f"{x:.3g}" for x in (row.before, row.after))
