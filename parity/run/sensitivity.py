"""How little must be wrong for a case to fail: per op, the largest factor on its output on one rank that still passes.

    e = 0                    passes          e of GRID, by bisection          1
    |--- passes ----------------- passes | fails ------------------------- fails |
                                         ^ what is stated: the largest e that passed, and the next one, which failed

A case sees an op when the e that fails is no more than the goal of its storage dtype. Of the calls of an op the one in
the middle of the run is scaled, or the next to it on which a bit of the answer depends: padding is nobody's answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parity.cases import Case
from parity.kinds import thresholds_for
from parity.kinds.base import Measured
from parity.measure.perturbation import OPS, counting, fault
from parity.measure.thresholds import judge
from parity.run.cpu import CpuRunner
from refsim.base import scratch
from refsim.base.errors import RefsimError, UserError
from refsim.files import output, tables

KINDS = ("attention", "transformer")
GOAL = {"fp32": 3e-6, "bf16": 3e-2}
GRID = {
    "fp32": (1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0),
    "bf16": (1e-3, 3e-3, 1e-2, 3e-2, 0.06, 0.1, 0.15, 0.3, 1.0),
}
RANKS = (1, 0)
"""The rank whose op is scaled, and the one that is taken where nothing of the first counts: it has the first tokens,
heads and features of every layout."""
TRIES = 4
"""Calls of an op on a rank that are tried until one counts."""

Say = Callable[[str], None]


def measurable(case: Case) -> bool:
    """Whether a case has layers or parts that are judged by themselves, and a second rank."""
    return case.kind in KINDS and case.layout.options().mesh.num_devices > max(RANKS)


@dataclass(frozen=True)
class Row:
    """What a case sees of an op.

    Attributes:
        rank, call: where it is scaled, the call counted from 0; None where no bit of the answer depends on any tried.
        passes: the largest e that passed, 0 if none did.
        fails: the smallest e that failed, None if none did.
        seen_by: the bounds that were exceeded there.
    """

    KEYS = ("case", "dtype", "op", "rank", "call", "passes", "fails", "seen_by", "good")

    case: str
    dtype: str
    op: str
    rank: int | None
    call: int | None
    passes: float
    fails: float | None
    seen_by: str

    @property
    def good(self) -> bool:
        """Whether the goal of the storage dtype is met."""
        return self.fails is not None and self.fails <= GOAL[self.dtype]


@dataclass
class Sensitivity:
    """The goals, the rows, and how many meet their goal."""

    goal: dict[str, float]
    good: int
    rows: list[Row]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Sensitivity:
        """Count the rows that are good."""
        return cls(GOAL, sum(row.good for row in rows), list(rows))


def measure(
    cases: Sequence[Case], seed: int = 0, ops: Sequence[str] = tuple(OPS), say: Say = lambda _: None
) -> list[Row]:
    """Measure every op that a case has, for every case.

    Raises:
        UserError: there is no case, or no op of such a name.
        RefsimError: a case fails without a perturbation.
    """
    if not cases:
        raise UserError(f"none of these cases can be perturbed; choose {' or '.join(KINDS)} cases of several devices.")
    if unknown := set(ops) - OPS.keys():
        raise UserError(f"op '{min(unknown)}' does not exist; choose one of {', '.join(OPS)}.")
    rows = []
    with CpuRunner() as runner:
        for case in cases:
            alone = _Alone(runner, replace(case, other_layout=None), seed)
            for op in alone.ops():
                if op in ops:
                    rows.append(alone.row(op))
                    say(line(rows[-1]))
            runner.drop(case, seed)
    return rows


class _Alone:
    """One case, run with one op scaled."""

    def __init__(self, runner: CpuRunner, case: Case, seed: int) -> None:
        self._runner = runner
        self._case = case
        self._seed = seed
        self._bounds = thresholds_for(case.kind, case.dtype)
        self._calls = {rank: self._count(rank) for rank in RANKS}

    def ops(self) -> list[str]:
        """Return the ops that a rank calls, in the order of ``OPS``."""
        return [op for op in OPS if any(op in calls for calls in self._calls.values())]

    def row(self, op: str) -> Row:
        """Bisect the grid of the case's storage dtype."""
        place = next(filter(None, (self._largest(op, rank, call) for rank, call in self._places(op))), None)
        grid = GRID[self._case.dtype]
        if place is None:
            return Row(self._case.id, self._case.dtype, op, None, None, grid[-1], None, "")
        rank, call, seen = place
        low = -1
        high = len(grid) - bool(seen)  # the grid at ``low`` passes, at ``high`` it fails
        while high - low > 1:
            middle = (low + high) // 2
            if failures := self._failures(fault(op, rank, by=grid[middle], call=call)):
                high = middle
                seen = failures
            else:
                low = middle
        passes = grid[low] if low >= 0 else 0.0
        fails = grid[high] if high < len(grid) else None
        return Row(self._case.id, self._case.dtype, op, rank, call, passes, fails, ", ".join(seen))

    def _count(self, rank: int) -> dict[str, int]:
        """Count how often the rank calls each op it calls at all, and store the right answer's digests."""
        with scratch.Folder("ops") as folder:
            file = Path(folder, "calls.json")
            measured = self._run(counting(rank, file))
            if failures := judge(measured.metrics, self._bounds):
                raise RefsimError(f"case {self._case.id} fails as it is: {'; '.join(failures)}.")
            self._digests = measured.digests
            return json.loads(file.read_text())

    def _places(self, op: str) -> Iterator[tuple[int, int]]:
        """Yield (rank, call) in the order they are tried: from the middle on, alternating."""
        for rank in RANKS:
            calls = range(self._calls[rank].get(op, 0))
            yield from ((rank, call) for call in sorted(calls, key=lambda call: abs(call - len(calls) // 2))[:TRIES])

    def _largest(self, op: str, rank: int, call: int) -> tuple[int, int, list[str]] | None:
        """Return the place and what fails there at the largest e; None if not a bit of the answer depends on it."""
        measured = self._run(fault(op, rank, by=GRID[self._case.dtype][-1], call=call))
        failures = judge(measured.metrics, self._bounds)
        return None if measured.digests == self._digests and not failures else (rank, call, _names(failures))

    def _failures(self, scaled: str) -> list[str]:
        return _names(judge(self._run(scaled).metrics, self._bounds))

    def _run(self, by: str) -> Measured:
        return self._runner.run(self._case, self._seed, fault=by)


def _names(failures: list[str]) -> list[str]:
    """Return the metrics of what was exceeded."""
    return [failure.split()[0] for failure in failures]


def line(row: Row) -> str:
    """Write one row for a terminal."""
    fails = "nothing fails" if row.fails is None else f"{row.fails:g} fails ({row.seen_by})"
    if row.rank is None:
        fails = "the answer depends on none of its calls that were tried"
    return f"{'ok  ' if row.good else 'MISS'} {row.case} {row.op}: {row.passes:g} passes, {fails}"


def as_markdown(rows: Sequence[Row]) -> str:
    """Write the table of ``sensitivity.md``."""
    lines = [
        "# Sensitivity of parity cases",
        "",
        "The output of one op on one rank (1, or 0 where nothing of 1 counts) is scaled by 1 + e, in the middle of the",
        "run, at the nearest call, counted from 0, on which a bit of the answer depends. *passes*: the largest e tried",
        "that still passes; *fails*: the smallest that fails, and by which bounds. An op is seen when the e that fails",
        f"is at most {GOAL['fp32']:g} (fp32) or {GOAL['bf16']:g} (bf16).",
        f"{sum(row.good for row in rows)} of {len(rows)} are seen.",
        "Made by `refsim parity sensitivity`.",
        "",
        tables.as_markdown(map(_cells, rows), ("case", "op", "rank", "call", "passes", "fails", "seen", "by")),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    rank, call, fails = ("-" if x is None else f"{x:g}" for x in (row.rank, row.call, row.fails))
    return row.case, row.op, rank, call, f"{row.passes:g}", fails, "yes" if row.good else "no", row.seen_by or "-"


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write sensitivity.json and sensitivity.md into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    output.write(folder / "sensitivity.json", (output.document(Sensitivity.of(rows), 1) + "\n").encode())
    output.write(folder / "sensitivity.md", as_markdown(rows).encode())
