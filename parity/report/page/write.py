"""The page itself: everything it shows as JSON, put into the template with its style and its programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import refsim
from parity.report.page import ring, rows, trends
from refsim.files import output
from refsim.files.keys import as_json
from refsim.results import KINDS
from refsim.timing.report import ranking

FOLDER = Path(__file__).parent
RESULTS = Path("out")
"""Where commands write, read if no folder is named."""
NAME = "index.html"
Progress = Callable[[str], None]


def write(
    out: Path, folders: Sequence[Path] | None, *, history: Path | None = None, only_records: bool, progress: Progress
) -> Path:
    """Write the page into ``out`` and return its file.

    Args:
        folders: searched for records of every kind; None: ``RESULTS``, which need not hold any.
        history: a file of ``refsim history``, whose trends are shown.
        only_records: compute nothing now, neither predictions of published systems nor a ring.

    Raises:
        UserError: as :func:`parity.report.page.rows.read` and :func:`parity.report.page.trends.read`.
    """
    if folders is None:
        folders = [RESULTS] if any(any(RESULTS.rglob(name)) for name, _ in KINDS.values()) else []
    data = collect(folders, history=history, only_records=only_records, progress=progress)
    out.mkdir(parents=True, exist_ok=True)
    for row in data["records"]["parity"]:
        if row["trace"] and "file" in row["trace"]:
            row["trace"] = {"file": Path(os.path.relpath(row["trace"]["file"], out)).as_posix()}
    output.write(out / NAME, page(data).encode())
    return out / NAME


def collect(
    folders: Sequence[Path], *, history: Path | None = None, only_records: bool, progress: Progress
) -> dict[str, Any]:
    """Return what the page shows: ``made``, ``commands`` by kind, ``records``, ``trends``, ``figures``, ``rings``."""
    data: dict[str, Any] = {
        "made": {"version": refsim.__version__, "when": datetime.now(timezone.utc).isoformat(timespec="seconds")},
        "commands": {kind: command for kind, (_, command) in KINDS.items()},
        "records": rows.read(folders),
        "trends": None if history is None else trends.read(history),
        "figures": None,
        "rings": None,
    }
    if not only_records:
        progress("a small ring attention")
        data["rings"] = ring.runs()
        data["figures"] = [asdict(run) | {"inside": run.inside} for run in ranking.runs(progress)]
    return data


def page(data: dict[str, Any]) -> str:
    """Write the HTML document; JSON in it has no ``<``, ``>`` and ``&``, so that no record's text ends the script."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    style, *programs = (
        Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "table.js", "charts.js", "page.js")
    )
    return environment.get_template("page.html").render(
        data=as_json(data), style=style, program=Markup("\n").join(programs)
    )
