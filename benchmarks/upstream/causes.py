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
from collections.abc import Sequence
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


def _read(name: str, columns: Sequence[str]) -> list[tuple[tuple[re.Pattern[str], ...], dict[str, str]]]:
    """Return the rows of a table, each with the patterns in its ``columns``."""
    with Path(__file__).with_name(name).open(newline="", encoding="utf-8") as file:
        return [(tuple(re.compile(row[column]) for column in columns), row) for row in csv.DictReader(file)]


def _first(table: Sequence[tuple[tuple[re.Pattern[str], ...], dict[str, str]]], *texts: str) -> dict[str, str] | None:
    for patterns, row in table:
        if all(pattern.search(text) for pattern, text in zip(patterns, texts, strict=True)):
            return row
    return None


_CAUSES = _read("causes.csv", ("id", "category", "message"))
_FINDINGS = _read("findings.csv", ("id", "finding"))


def cause_of(case: str, category: str, message: str) -> Cause | None:
    """Return the first cause whose patterns fit a failing case, or None."""
    row = _first(_CAUSES, case, category, message)
    return Cause(row["who"], row["words"], row["left_out"]) if row else None


def why_right(case: str, finding: str) -> str:
    """Return in which way a passing case makes the mistake that a finding names; empty if nobody has looked at it."""
    row = _first(_FINDINGS, case, finding)
    return row["words"] if row else ""
