"""Reports that were written: one read again, and a table of all those of a folder. Needs no ttnn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refsim.base.errors import UserError
from refsim.files import output
from tt_impl.harness.reports import markdown

SCHEMA = 1
OPTION = "--ttnn-report"
"""Of pytest; of ``refsim ttnn run`` it is ``--report``."""


def load(path: str | Path) -> dict[str, Any]:
    """Read a report that ``write`` has written.

    Raises:
        UserError: it is none, or of another schema.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' is no report: {error}; {OPTION} DIR writes them.") from error
    if not isinstance(report, dict) or report.get("schema") != SCHEMA or "operations" not in report:
        raise UserError(f"'{path}' is no report of schema {SCHEMA}; write it again with {OPTION} DIR.")
    return report


def index(folder: str | Path, files: Iterable[str] | None = None) -> Path:
    """Write ``index.json`` and ``index.md`` over reports of a folder, in order of name; return the latter's path.

    ``files``: names of the reports' JSON, those of one run; without it all that lie there.

    ``index.json``: ``schema``, and ``programs`` with ``name``, ``file``, ``operations``, ``collectives``, ``ns`` (low,
    predicted, high), ``unpriced``, ``dram_peak_bytes`` and ``l1_peak_bytes`` (of a device; of a core), ``findings``
    by kind, ``fallbacks``, ``unknown_layouts`` (programs of whose circular buffers ttnn told nothing).
    """
    folder = Path(folder)
    paths = sorted(folder.glob("*.json") if files is None else {folder / name for name in files})
    reports = (path for path in paths if path.name != "index.json" and not path.name.endswith(".trace.json"))
    rows = [_row(path, load(path)) for path in reports]
    output.write(folder / "index.json", (json.dumps({"schema": SCHEMA, "programs": rows}) + "\n").encode(), OPTION)
    output.write(folder / "index.md", markdown.index(rows).encode(), OPTION)
    return folder / "index.md"


def _row(path: Path, report: dict[str, Any]) -> dict[str, Any]:
    meshes = report["memory"]["meshes"]
    return {
        "name": report["name"],
        "file": path.name,
        "operations": len(report["operations"]),
        "collectives": len(report["collectives"]),
        "ns": [report["cost"][name] for name in ("low_ns", "ns", "high_ns")],
        "unpriced": sum(entry["count"] for entry in report["cost"]["unpriced"]),
        "dram_peak_bytes": max((m["DRAM"]["peak"]["bytes"] for m in meshes if "DRAM" in m), default=0),
        "l1_peak_bytes": max((m["L1"]["with_programs"]["bytes"] for m in meshes if "L1" in m), default=0),
        "findings": dict(Counter(finding["kind"] for finding in report["findings"])),
        "fallbacks": sum(report["fallbacks"].values()),
        "unknown_layouts": report["memory"]["unknown_layouts"],
    }
