"""What one watched program did, in files: ``write`` for one test or program, ``index`` for all of a folder.

``<name>.json`` (everything, see :func:`content`), ``<name>.md`` (for people), ``<name>.trace.json`` (opens in
ui.perfetto.dev), ``<name>.csv`` (opens in tt-perf-report), ``<name>.visualizer/`` (``db.sqlite`` and ``config.json``,
open in ttnn-visualizer). Times are predicted, and every file says so; memory is what ttnn's allocator says.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from refsim import output
from refsim.errors import UserError
from tt_impl.harness import cost, memory, report_csv, report_text, report_trace, visualizer
from tt_impl.harness.session import Session
from tt_impl.mock.events import Event, TensorUse

SCHEMA = 1
OPTION = "--ttnn-report"


def write(folder: str | Path, name: str, session: Session, findings: Sequence[Any] = ()) -> Path:
    """Write all files of one program and return the path of its JSON.

    Args:
        folder: is made if it is not there.
        name: of the test or program; what no file name may hold becomes ``_``.
        session: watched with ``report=True``.
        findings: what :func:`tt_impl.harness.findings.find` found.

    Raises:
        UserError: the session was not watched with ``report``, or the folder cannot be written to.
    """
    folder = Path(folder)
    output.check_folder(folder, OPTION)
    folder.mkdir(exist_ok=True)
    said = content(session, name, findings)
    path = folder / f"{file_name(name)}.json"
    predictions = cost.predict(session.meter)
    output.write(path, (json.dumps(said, allow_nan=False) + "\n").encode(), OPTION)
    for suffix, text in (
        (".md", report_text.markdown(said)),
        (".trace.json", report_trace.trace(session.meter, predictions)),
        (".csv", report_csv.table(session.meter, predictions)),
    ):
        output.write(path.with_suffix(suffix), text.encode(), OPTION)
    visualizer.write(path.with_suffix(".visualizer"), name, session)
    return path


def file_name(name: str) -> str:
    """``name`` as a file may be called, not longer than file systems allow."""
    short = re.sub(r"[^\w.=-]+", "_", name).strip("_") or "program"
    return short if len(short) <= 180 else f"{short[:80]}..{short[-98:]}"


def content(session: Session, name: str = "", findings: Sequence[Any] = ()) -> dict[str, Any]:
    """Everything as JSON values; new fields may come, these stay. Bytes are whole numbers, times ns, both of a device.

    * ``schema`` (1), ``name``, ``meshes``: ``mesh`` (id), ``devices``, ``shape``, ``arch``, ``grid`` (columns, rows).
    * ``operations``, one per call: ``number``, ``op``, ``where`` (path:line), ``inputs`` and ``outputs`` (``argument``,
      ``tensor``, ``buffer``, ``address``, ``shape``, ``dtype``, ``layout``, ``memory``, ``sharding``, ``bytes``,
      ``devices``; outputs also ``value``, see :func:`tt_impl.harness.results.described`, null where nobody knows it),
      ``options``, ``collectives``, ``written`` (buffers written in place), ``error``.
    * ``collectives``, in order: ``number``, ``op``, ``where``, ``collective``, ``axis``, ``bytes``, ``topology``,
      ``links``.
    * ``launches``, one per device operation: ``event``, ``op``, ``where``, ``device_op``, ``mesh``, ``cores``,
      ``cb_bytes`` (null where ttnn would not tell), ``fidelity``, and ``ns``, ``low_ns``, ``high_ns``, ``kind``,
      ``bound``, ``measured``, ``assumed`` or ``unpriced``, see :class:`tt_impl.harness.cost.Prediction`.
    * ``cost``: totals, see :func:`tt_impl.harness.cost.summary`.
    * ``memory``: see :func:`tt_impl.harness.memory.summary`.
    * ``findings``: ``kind``, ``sentence``, ``op``, ``where``; what leaks is among them.
    * ``fallbacks``: operations answered by ttnn's golden functions, and how often.
    """
    if session.meter is None or session.results is None:
        raise UserError("a report needs a program watched with report=True; pass it to watched().")
    memory_said, predictions = memory.summary(session.meter), cost.predict(session.meter)
    return {
        "schema": SCHEMA,
        "name": name,
        "meshes": [_mesh(mesh, about) for mesh, about in session.meter.meshes.items()],
        "operations": [_operation(event, session) for event in session.log.events],
        "collectives": [
            {"number": event.number, "op": event.op, "where": event.where} | found
            for event in session.log.events
            for found in event.collectives
        ],
        "launches": [_launch(p) for p in predictions],
        "cost": cost.summary(session.meter, predictions),
        "memory": memory_said,
        "findings": [*map(_finding, findings), *map(_leak, memory_said["leaks"])],
        "fallbacks": dict(session.fallbacks),
    }


def _mesh(mesh: int, about: dict[str, Any]) -> dict[str, Any]:
    return {"mesh": mesh} | {name: about[name] for name in ("devices", "shape", "arch", "grid")}


def _operation(event: Event, session: Session) -> dict[str, Any]:
    values = session.results.of.get(event.number, [])
    outputs = [_tensor(use) for use in event.outputs]
    for i, tensor in enumerate(outputs):
        tensor["value"] = values[i] if i < len(values) else None
    return {
        "number": event.number,
        "op": event.op,
        "where": event.where,
        "inputs": [_tensor(use) for use in event.inputs],
        "outputs": outputs,
        "options": _plain(event.options),
        "collectives": event.collectives,
        "written": list(event.written),
        "error": event.error,
    }


def _tensor(use: TensorUse) -> dict[str, Any]:
    found = asdict(use)
    return found | {"shape": list(use.shape), "devices": list(use.devices), "mesh": list(use.mesh)}


def _plain(value: Any) -> Any:
    """JSON has no infinite numbers."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


def _launch(prediction: cost.Prediction) -> dict[str, Any]:
    launch = prediction.launch
    return prediction.as_json() | {
        "cores": launch.layout.cores if launch.layout else None,
        "cb_bytes": launch.layout.cb_bytes if launch.layout else None,
        "fidelity": launch.row["fidelity"],
    }


def _finding(finding: Any) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in ("kind", "sentence", "op", "where")}


def _leak(leak: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "leak", "sentence": leak["sentence"], "op": leak["op"], "where": leak["where"]}


def load(path: str | Path) -> dict[str, Any]:
    """A report that ``write`` has written.

    Raises:
        UserError: it is none, or of another schema.
    """
    try:
        said = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' is no report: {error}; {OPTION} DIR writes them.") from error
    if not isinstance(said, dict) or said.get("schema") != SCHEMA or "operations" not in said:
        raise UserError(f"'{path}' is no report of schema {SCHEMA}; write it again with {OPTION} DIR.")
    return said


def index(folder: str | Path) -> Path:
    """Write ``index.json`` and ``index.md`` over all reports of a folder, in order of name; return the latter's path.

    ``index.json``: ``schema``, and ``programs`` with ``name``, ``file``, ``operations``, ``collectives``, ``ns`` (low,
    predicted, high), ``unpriced``, ``dram_peak_bytes`` and ``l1_peak_bytes`` (of a device; of a core), ``findings``
    by kind, ``fallbacks``.
    """
    folder = Path(folder)
    rows = []
    for path in sorted(folder.glob("*.json")):
        if path.name == "index.json" or path.name.endswith(".trace.json"):
            continue
        rows.append(_row(path, load(path)))
    output.write(folder / "index.json", (json.dumps({"schema": SCHEMA, "programs": rows}) + "\n").encode(), OPTION)
    output.write(folder / "index.md", report_text.index(rows).encode(), OPTION)
    return folder / "index.md"


def _row(path: Path, said: dict[str, Any]) -> dict[str, Any]:
    meshes = said["memory"]["meshes"]
    return {
        "name": said["name"],
        "file": path.name,
        "operations": len(said["operations"]),
        "collectives": len(said["collectives"]),
        "ns": [said["cost"][name] for name in ("low_ns", "ns", "high_ns")],
        "unpriced": sum(entry["count"] for entry in said["cost"]["unpriced"]),
        "dram_peak_bytes": max((m["DRAM"]["peak"]["bytes"] for m in meshes if "DRAM" in m), default=0),
        "l1_peak_bytes": max((m["L1"]["with_programs"]["bytes"] for m in meshes if "L1" in m), default=0),
        "findings": dict(Counter(finding["kind"] for finding in said["findings"])),
        "fallbacks": sum(said["fallbacks"].values()),
    }
