"""Tables over published systems: those asked for, one after the other on a warm worker, into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from refsim.base.errors import UserError
from refsim.files import output
from tt_impl.run.launch import Worker

Row = dict[str, Any]
System = tuple[str, str, str, str]
"""Model, size, mesh, configuration."""
Progress = Callable[[str], None]


def measured(
    systems: Sequence[System], match: str, measure: Callable[[System, Worker], Row], progress: Progress
) -> list[Row]:
    """Measure those systems alone whose ``model size mesh parallel`` has all words of ``match``.

    Raises:
        UserError: no system has these words.
    """
    chosen = [system for system in systems if all(word in " ".join(system) for word in match.split())]
    if not chosen:
        raise UserError(f"no system has the words '{match}'; one of them is '{' '.join(systems[0])}'.")
    rows = []
    with Worker() as worker:
        for system in chosen:
            progress(" ".join(system))
            rows.append(measure(system, worker))
    return rows


def write(rows: list[Row], numbers: Path, page: Path, lines: Iterable[str]) -> None:
    """Write the rows as JSON, and a page of them, into one folder."""
    numbers.parent.mkdir(parents=True, exist_ok=True)
    output.write(numbers, (json.dumps(rows, indent=1) + "\n").encode())
    output.write(page, ("\n".join(lines) + "\n").encode())
