"""Why cases of upstream's tests fail on the mock, in words: a table of patterns, the first that fits is the cause.

``causes.csv`` has a pattern of a case's id, of the category and of the message of its failure; an empty one fits all.
What takes a case out of the count names test and words, since a mistake of the mock may raise the same kind of error.
``who`` is ``ours`` (a rule, an option or a value is missing or wrong), ``theirs`` (the test does not fit the tree it is
in, or asserts what no program can know), ``rounding`` (with numerics, it asks for less error than is predicted of the
kernels), or ``skew`` (the tree and the libraries installed here are of different versions). A failure that no pattern
fits counts as failed and is printed as unexplained; so does one that is only like a known case, for the mock's own code
may raise a ``TypeError`` of the same words.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

SKEW = "skew"
MODULE = "module"
DOWNLOAD = "download"


@dataclass(frozen=True)
class Cause:
    """A cause: whose it is, what it is, and the class of cases left out of the count it belongs to, if any."""

    who: str
    words: str
    left_out: str = ""


def _read() -> list[tuple[tuple[re.Pattern[str], ...], Cause]]:
    """Return the patterns of the table, of id, category and message, with the cause that they stand for."""
    table = []
    with Path(__file__).with_name("causes.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            patterns = tuple(re.compile(row[name]) for name in ("id", "category", "message"))
            table.append((patterns, Cause(row["who"], row["words"], row["left_out"])))
    return table


_TABLE = _read()


def cause_of(case: str, category: str, message: str) -> Cause | None:
    """Return the first cause whose patterns fit a failing case, or None."""
    for patterns, cause in _TABLE:
        if all(pattern.search(text) for pattern, text in zip(patterns, (case, category, message), strict=True)):
            return cause
    return None
