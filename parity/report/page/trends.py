"""A history of results as lines over commits: a series per case and setting, a point per commit that has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.report import history

SHOWN = ("one_minus_pcc", "rel_rmse")
"""Metrics that are drawn where a case has them; any other is drawn once its limit was loosened."""
NUMBERS = ("measured_s", "predicted_s", "memory_gb")

Data = dict[str, Any]


def read(path: Path) -> Data:
    """Return ``commits`` by their dates, and ``series``, each with the places ``at`` of its points among them.

    Raises:
        UserError: the file is not there, is no history, or holds nothing.
    """
    entries = history.read(path)
    known = {entry.commit: {"commit": entry.commit, "date": entry.date, "version": entry.version} for entry in entries}
    commits = sorted(known.values(), key=lambda commit: commit["date"])
    place = {commit["commit"]: i for i, commit in enumerate(commits)}
    return {"commits": commits, "series": [_series(part, place) for part in history.each(entries)]}


def _series(entries: Sequence[history.Entry], place: dict[str, int]) -> Data:
    """Return one thing over commits: verdicts, metrics with limits, seconds, GB, and ``worse``, what fell when."""
    records = [entry.record for entry in entries]
    changes = list(history.became_worse(entries))
    numbers = [history.numbers_of(entry.kind, entry.record) for entry in entries]
    loosened = {row.what.removeprefix("limit of ") for rows in changes for row in rows if row.loosened}
    known = {name for record in records for name in record.get("metrics", {})}
    drawn = [name for name in (*SHOWN, *sorted(loosened - set(SHOWN))) if name in known]
    kind, case, setting = entries[0].series
    return {
        "kind": kind,
        "case": case,
        "setting": setting,
        "at": [place[entry.commit] for entry in entries],
        "verdicts": [row["verdict"] for row in numbers],
        "metrics": {name: {of: _column(records, of, name) for of in ("metrics", "thresholds")} for name in drawn},
        **{
            name: [row.get(name) for row in numbers]
            for name in NUMBERS
            if any(row.get(name) is not None for row in numbers)
        },
        "worse": [
            {"point": i, "text": str(row), "metric": row.what.removeprefix("limit of "), "loosened": row.loosened}
            for i, rows in enumerate(changes)
            for row in rows
        ],
    }


def _column(records: Sequence[Data], of: str, name: str) -> list[Any]:
    return [record.get(of, {}).get(name) for record in records]
