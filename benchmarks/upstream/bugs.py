"""Mistakes of parallel programs, seeded one at a time into tt_dit, each with the upstream test that runs it.

A bug (``bugs.json``) names a file, a function and what is changed in it, by structure. It counts as caught if
upstream's own assert fails, if ttnn or the shadow refuses the program, or if a check of collectives and buffers names
it. That the same test passes without the bug is measured, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.upstream import cases, edits


@dataclass(frozen=True)
class Bug:
    """A mistake: what it is in words, where it is made, and the test that runs the place."""

    what: str
    file: str
    function: str
    edit: edits.Edit
    case: cases.Case


def _read() -> dict[str, Bug]:
    """Return the bugs by name; an edit stands in the file as its class in ``edits.py`` and the class's arguments."""
    rows = json.loads(Path(__file__).with_name("bugs.json").read_text(encoding="utf-8"))
    bugs = {}
    for name, row in rows.items():
        kind, *arguments = row["edit"]
        edit = getattr(edits, kind)(*arguments)
        bugs[name] = Bug(row["what"], row["file"], row["function"], edit, getattr(cases, row["case"]))
    return bugs


BUGS = _read()
