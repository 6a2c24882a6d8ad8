"""Mutations that nothing can tell from the program, each with the proof; they are not counted.

One that a trace or a unit test tells apart is none, though every answer stays.
"""

from __future__ import annotations

import csv
from pathlib import Path

from parity.mutation.sites import Mutation

TABLE = Path(__file__).with_name("equivalent.csv")
with TABLE.open(encoding="utf-8", newline="") as _lines:
    EQUIVALENT = {(row["file"], row["before"], row["after"]): row["why"] for row in csv.DictReader(_lines)}
"""(file, the source that is changed, what it is changed to) -> why the answers are the same.

The source is the changed expression, or, where that is found in many places, all of the changed lines.
"""


def proof(mutation: Mutation, source: str) -> str:
    """Say why a mutation of a file's ``source`` is equivalent; empty if it is not known to be."""
    changes = (mutation.before, mutation.after), changed_lines(mutation, source)
    return next((why for change in changes if (why := EQUIVALENT.get((mutation.file, *change)))), "")


def changed_lines(mutation: Mutation, source: str) -> tuple[str, str]:
    """Return the lines that a mutation changes and what they become, without the space around them."""
    lines = mutation.diff(source).splitlines()[3:]
    before, after = ("\n".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return before, after
