"""How many lines of each file the cases execute: as text, JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parity.lines.measure import Asked, LineMap
from parity.lines.source import statements
from refsim import output, tables

SCHEMA = 1
"""Version of the form of coverage.json."""


@dataclass(frozen=True)
class Count:
    """Statements of a file (or folder), how many of them are executed, and the first lines of those that are not."""

    file: str
    lines: int
    executed: int
    missing: list[int] = field(default_factory=list)

    @property
    def percent(self) -> float:
        return 100.0 * self.executed / self.lines if self.lines else 100.0


def count(file: str, source: str, executed: set[int]) -> Count:
    """Count the statements in functions of a file; one over several lines counts once."""
    known = statements(source)
    missing = [s.first for s in known if not s.is_in(executed)]
    return Count(file, len(known), len(known) - len(missing), missing)


def total(counts: Iterable[Count], name: str = "all") -> Count:
    """The sum of counts."""
    known = list(counts)
    return Count(name, sum(c.lines for c in known), sum(c.executed for c in known))


def folders(counts: list[Count]) -> list[Count]:
    """The sum of every folder two levels deep, such as ``refsim/parallel``."""
    names = dict.fromkeys(_folder(c.file) for c in counts)
    return [total((c for c in counts if _folder(c.file) == name), name) for name in names]


def _folder(file: str) -> str:
    return "/".join(file.split("/")[:2])


def ranges(lines: list[int]) -> str:
    """``12-14, 20``, where lines that follow each other by no more than 1 are one range."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line <= runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


def text(counts: list[Count], found: LineMap) -> str:
    """A line a file that has functions, the folders, the sum."""
    rows = [*(c for c in counts if c.lines), *folders(counts), total(counts)]
    width = max(len(c.file) for c in rows)
    lines = [f"{c.file:{width}} {c.executed:5} of {c.lines:5} {c.percent:6.1f} %  {ranges(c.missing)}" for c in rows]
    lines += [f"not counted, {c.verdict}: {c.case}: {c.reason}" for c in found.troubled]
    return "\n".join(line.rstrip() for line in lines)


def as_dict(asked: Asked, counts: list[Count], found: LineMap) -> dict[str, Any]:
    every = total(counts)
    return {
        "schema": SCHEMA,
        "asked": asdict(asked),
        "lines": every.lines,
        "executed": every.executed,
        "percent": round(every.percent, 2),
        "files": [{**asdict(c), "percent": round(c.percent, 2)} for c in counts],
        "cases": len(found.cases) - len(found.troubled),
        "not_counted": [{"case": c.case, "verdict": c.verdict, "reason": c.reason} for c in found.troubled],
    }


def markdown(asked: Asked, counts: list[Count], found: LineMap) -> str:
    """coverage.md."""
    every, cases = total(counts), len(found.cases) - len(found.troubled)
    chosen = f", those that match `{asked.expr}`" if asked.expr else ""
    rows = (
        (c.file, c.lines, c.executed, f"{c.percent:.1f}", ranges(c.missing))
        for c in [*(c for c in counts if c.lines), *folders(counts)]
    )
    lines = [
        "# Lines executed by parity cases",
        "",
        f"**Measured.** {cases} cases of suite `{asked.suite}` on backend `{asked.backend}`{chosen} execute "
        f"{every.executed} of {every.lines} lines ({every.percent:.1f} %): statements in functions, without docstrings "
        "and refusals (`raise`), in the launcher and in every process that it starts.",
        "",
        tables.as_markdown(rows, ("file", "lines", "executed", "%", "not executed")),
    ]
    return "\n".join(lines) + "\n"


def write(asked: Asked, counts: list[Count], found: LineMap, folder: Path) -> None:
    """``coverage.json`` and ``coverage.md`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    output.write(folder / "coverage.json", (json.dumps(as_dict(asked, counts, found), indent=1) + "\n").encode())
    output.write(folder / "coverage.md", markdown(asked, counts, found).encode())
