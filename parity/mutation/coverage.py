"""How many lines of each file the cases execute: as text, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from parity.mutation.measure import Asked, LineMap
from parity.mutation.source import statements
from parity.mutation.tree import folder_of
from refsim.files import output, tables
from refsim.files.keys import Document, Key
from refsim.models.registry import builtin


@dataclass(frozen=True)
class Count:
    """Statements of a file (or folder).

    Attributes:
        lines: all of them.
        executed: how many of them are.
        missing: the first lines of those that are not, but for refusals.
        refused: how many of those that are not stand in refusals, see :func:`count`.
    """

    KEYS = ("file", "lines", "executed", "missing", "refused", "rounded", "rounded_of_runs")

    file: str
    lines: int
    executed: int
    missing: list[int] = field(default_factory=list)
    refused: int = 0

    @property
    def percent(self) -> float:
        """Return the part of all statements."""
        return _percent(self.executed, self.lines)

    @property
    def percent_of_runs(self) -> float:
        """Return the part of those that are not refused."""
        return _percent(self.executed, self.lines - self.refused)

    @property
    def rounded(self) -> Annotated[float, Key("percent")]:
        """Of all lines."""
        return round(self.percent, 2)

    @property
    def rounded_of_runs(self) -> Annotated[float, Key("percent_of_runs")]:
        """Of those that are not refused."""
        return round(self.percent_of_runs, 2)


@dataclass
class Lines(Document):
    """Lines of functions that cases execute, by file."""

    SCHEMA = 2

    asked: Asked
    lines: int
    executed: int
    refused: int
    percent: float
    percent_of_runs: float
    files: list[Count]
    cases: int
    not_counted: list[dict[str, str]]

    @classmethod
    def of(cls, asked: Asked, counts: list[Count], line_map: LineMap) -> Lines:
        """Sum up."""
        every = total(counts)
        troubled = [{"case": c.case, "verdict": c.verdict, "reason": c.reason} for c in line_map.troubled]
        sums = (every.lines, every.executed, every.refused, every.rounded, every.rounded_of_runs)
        return cls(asked, *sums, counts, len(line_map.cases) - len(line_map.troubled), troubled)


def _percent(executed: int, lines: int) -> float:
    return 100.0 * executed / lines if lines else 100.0


def count(file: str, source: str, executed: set[int], refused: bool = False) -> Count:
    """Count the statements in functions of a file; one over several lines counts once.

    Args:
        refused: every run refuses what the file is for; otherwise refusals are branches that only a `raise` leaves.
    """
    known = statements(source)
    left = [s for s in known if not s.is_in(executed)]
    missing = [s.first for s in left if not (refused or s.refuses)]
    return Count(file, len(known), len(known) - len(left), missing, len(left) - len(missing))


def timing_only() -> set[str]:
    """Return the files that are for predictions alone: those of the models that every run refuses, and of no other."""
    files: dict[bool, set[str]] = {False: set(), True: set()}
    for spec in builtin():
        used = (spec.model, spec.config, f"refsim.models.{spec.name}.spec:")
        files[spec.timing_only] |= {name.partition(":")[0].replace(".", "/") + ".py" for name in used}
    return files[True] - files[False]


def total(counts: Iterable[Count], name: str = "all") -> Count:
    """Add up counts."""
    known = list(counts)
    lines, executed, refused = (sum(getattr(c, of) for c in known) for of in ("lines", "executed", "refused"))
    return Count(name, lines, executed, refused=refused)


def by_folder(counts: list[Count]) -> list[Count]:
    """Add up the counts of every folder two levels deep, such as ``refsim/parallel``."""
    names = dict.fromkeys(folder_of(c.file) for c in counts)
    return [total((c for c in counts if folder_of(c.file) == name), name) for name in names]


def ranges(lines: list[int]) -> str:
    """Write ``12-14, 20``, where lines that follow each other by no more than 1 are one range."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line <= runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


def text(counts: list[Count], line_map: LineMap) -> str:
    """Write a line a file that has functions, the folders, the sum."""
    rows = [*(c for c in counts if c.lines), *by_folder(counts), total(counts)]
    width = max(len(c.file) for c in rows)
    lines = [
        f"{c.file:{width}} {c.executed:5} of {c.lines:5} {c.percent:6.1f} %, {c.percent_of_runs:5.1f} % without "
        f"{c.refused:3} refused  {ranges(c.missing)}"
        for c in rows
    ]
    lines += [f"not counted, {c.verdict}: {c.case}: {c.reason}" for c in line_map.troubled]
    return "\n".join(line.rstrip() for line in lines)


def markdown(asked: Asked, counts: list[Count], line_map: LineMap) -> str:
    """Write coverage.md."""
    every = total(counts)
    cases = len(line_map.cases) - len(line_map.troubled)
    chosen = f", those that match `{asked.expr}`" if asked.expr else ""
    rows = (
        (c.file, c.lines, c.executed, f"{c.percent:.1f}", c.refused, f"{c.percent_of_runs:.1f}", ranges(c.missing))
        for c in [*(c for c in counts if c.lines), *by_folder(counts)]
    )
    lines = [
        "# Lines executed by parity cases",
        "",
        f"**Measured.** {cases} cases of suite `{asked.suite}` on backend `{asked.backend}`{chosen} execute "
        f"{every.executed} of {every.lines} lines ({every.percent:.1f} %): statements in functions, without docstrings "
        "and `raise`, in the launcher and in every process that it starts.",
        "",
        f"{every.refused} of the others are refused: no right run gets to them. Those are the lines of models that "
        "every run refuses (`timing_only` of a spec), and what stands before a `raise` in a branch that only this "
        f"`raise` leaves. Without them it is {every.percent_of_runs:.1f} % of {every.lines - every.refused}.",
        "",
        tables.as_markdown(rows, ("file", "lines", "executed", "%", "refused", "% without", "not executed")),
    ]
    return "\n".join(lines) + "\n"


def write(asked: Asked, counts: list[Count], line_map: LineMap, folder: Path) -> None:
    """Write ``coverage.json`` and ``coverage.md`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    output.write(folder / "coverage.json", (output.document(Lines.of(asked, counts, line_map), 1) + "\n").encode())
    output.write(folder / "coverage.md", markdown(asked, counts, line_map).encode())
