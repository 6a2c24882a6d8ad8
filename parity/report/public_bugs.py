"""Bugs that users of parallel diffusion models met in public, each with what replays it here, if anything does.

A replay is a buffer policy (``refsim schedules policy``, proved unsafe), a fault of the corpus (``refsim faults run``,
caught or the session fails), a hazard program of the tests, or a program of TTNN that a finding names.
``python -m parity.report.public_bugs`` prints the table of ``docs/public_bugs.md``, whose rows are those of
``public_bugs.csv`` beside this file. What has no replay says why: it is not found here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from refsim.files.tables import as_markdown

Kind = Literal["policy", "fault", "program", "finding", "check", "pipeline", ""]


@dataclass(frozen=True)
class PublicBug:
    """One public thread.

    Attributes:
        thread: where it is told.
        what: what happened, in one clause.
        kind: what sort of replay there is; empty if there is none.
        replay: its name: of a policy, of a fault, of a program in ``tests/refsim/hazard_programs.py``
            or, if a finding of the mock names it, in ``tests/harness/programs``; of a kind of finding (``check``);
            of a pipeline of theirs that ``benchmarks/programs`` runs beside diffusers.
        note: what finds it, or why nothing here does.
    """

    thread: str
    what: str
    kind: Kind
    replay: str
    note: str


with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _lines:
    BUGS = tuple(PublicBug(**row) for row in csv.DictReader(_lines))


def replayed() -> list[PublicBug]:
    """Return those that a replay shows."""
    return [bug for bug in BUGS if bug.kind]


def markdown() -> str:
    """Return the generated part of ``docs/public_bugs.md``."""
    names = {
        "policy": "policy",
        "fault": "fault",
        "program": "hazard program",
        "finding": "TTNN program",
        "check": "finding",
        "pipeline": "their pipeline",
        "": "not found",
    }
    rows = (
        (bug.thread, bug.what, f"{names[bug.kind]} `{bug.replay}`" if bug.kind else names[""], bug.note) for bug in BUGS
    )
    table = as_markdown(rows, ("thread", "what happened", "replayed as", "by what, or why not"))
    return f"**{len(replayed())} of {len(BUGS)} are found.**\n\n{table}\n"


if __name__ == "__main__":
    print(markdown(), end="")
