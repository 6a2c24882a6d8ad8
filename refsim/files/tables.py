"""Tables: as markdown, and as CSV, a line a record, where nested values become columns such as ``metrics.rel_rmse``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from refsim.files import output
from refsim.files.keys import Document, as_json

SKIPPED = ("last_events", "error", "explanation", "optable")
"""Fields of records that no cell can hold; an ``error`` that is a number is no traceback."""


def as_markdown(rows: Iterable[Iterable[Any]], columns: Sequence[Any], align: str = "") -> str:
    """Format a markdown table, without a newline at its end; None, or what a short row lacks, is an empty cell.

    ``align`` is ``l`` or ``r`` of every column. pandas' own needs one more package, and pads every cell to the widest.
    """

    def line(cells: Iterable[Any]) -> str:
        return "|" + "".join(" |" if cell is None else f" {_cell(cell)} |" for cell, _ in zip_longest(cells, columns))

    rule = "".join("---:|" if side == "r" else "---|" for side in align or "l" * len(columns))
    return "\n".join([line(columns), f"|{rule}", *map(line, rows)])


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def check_csv(path: Path | None) -> None:
    """Refuse a path that cannot be written, before a run."""
    if path is not None:
        output.check_target(path, "--csv")


def flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a record: nested dictionaries are spelled out as ``outer.inner``, lists are JSON."""
    columns: dict[str, Any] = {}
    for name, value in record.items():
        if name in SKIPPED and not isinstance(value, (int, float)):
            continue
        if isinstance(value, dict):
            columns |= flat(value, f"{prefix}{name}.")
        else:
            columns[prefix + name] = json.dumps(value) if isinstance(value, (list, tuple)) else value
    return columns


def as_csv(records: Sequence[Any], columns: Sequence[str] = ()) -> str:
    """Return the text of a CSV file of results, or of dictionaries.

    Columns stand in the order in which they appear first, those given in front.
    """
    import pandas as pd

    rows = [flat(record if isinstance(record, dict) else as_json(record)) for record in records]
    for row, record in zip(rows, records, strict=True):
        if isinstance(record, Document):
            del row["schema"]  # it is of the whole, not of a line
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    return pd.DataFrame(rows, columns=names, dtype=object).to_csv(index=False, lineterminator="\n")


def write_csv(records: Sequence[Any], path: Path | None, columns: Sequence[str] = ()) -> None:
    """Write :func:`as_csv` to a file, if one is named."""
    if path is not None:
        output.write(path, as_csv(records, columns).encode(), "--csv")
