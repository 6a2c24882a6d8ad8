"""Tables over published systems: those asked for, one after the other on a warm worker, into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refsim.base.errors import UserError
from refsim.files import output
from tt_impl.run.launch import Worker

Row = dict[str, Any]
System = tuple[str, str, str, str]
"""Model, size, mesh, configuration."""


@dataclass(frozen=True)
class Table:
    """A report with a row per system.

    Attributes:
        measure: the row of a system.
        lines: the page of all rows.
        numbers, page: names of the files, of the rows as JSON and of the page.
    """

    systems: tuple[System, ...]
    measure: Callable[[System, Worker], Row]
    lines: Callable[[list[Row]], Iterable[str]]
    numbers: str
    page: str

    def write(self, out: Path, *, match: str = "", progress: Callable[[str], None] = lambda text: None) -> list[Row]:
        """Write both files into ``out``, of those systems alone whose ``model size mesh parallel`` has all words of
        ``match``: one table is one run.

        Raises:
            UserError: no system has these words.
        """
        chosen = [system for system in self.systems if all(word in " ".join(system) for word in match.split())]
        if not chosen:
            raise UserError(f"no system has the words '{match}'; one of them is '{' '.join(self.systems[0])}'.")
        rows = []
        with Worker() as worker:
            for system in chosen:
                progress(" ".join(system))
                rows.append(self.measure(system, worker))
        out.mkdir(parents=True, exist_ok=True)
        output.write(out / self.numbers, (json.dumps(rows, indent=1) + "\n").encode())
        output.write(out / self.page, ("\n".join(self.lines(rows)) + "\n").encode())
        return rows


def missing(error: Exception) -> Row:
    """Return what stands in a row in place of numbers: why there are none."""
    return {"missing": " ".join(str(error).split())[:200]}
