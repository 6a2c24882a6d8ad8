"""What one watched program did, in files; :mod:`tt_impl.harness.reports.report_index` is about all programs of a
folder.

``<name>.json`` (everything, see :func:`content`), ``<name>.md`` (for people), ``<name>.trace.json`` (opens in
ui.perfetto.dev), ``<name>.csv`` (opens in tt-perf-report), ``<name>.visualizer/`` (``db.sqlite`` and ``config.json``,
open in ttnn-visualizer). Times are predicted, and every file says so; memory is what ttnn's allocator says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from refsim.base.errors import RefsimError, UserError
from refsim.files import output
from tt_impl.harness.checks.finding import Finding
from tt_impl.harness.checks.findings import find
from tt_impl.harness.reports import cost, memory, report_csv, report_text, report_trace, visualizer
from tt_impl.harness.reports.prediction import Prediction
from tt_impl.harness.reports.report_index import OPTION, SCHEMA
from tt_impl.harness.watch.session import Session
from tt_impl.mock.log.events import Event, TensorUse


def write(folder: str | Path, name: str, session: Session, findings: Sequence[Finding] | None = None) -> Path:
    """Write all files of one program and return the path of its JSON.

    Args:
        folder: is made if it is not there.
        name: of the test or program; what no file name may hold becomes ``_``.
        session: watched with ``report=True``.
        findings: what :func:`tt_impl.harness.checks.findings.find` found, if that was asked before.

    Raises:
        UserError: the session was not watched with ``report``, or the folder cannot be written to.
    """
    folder = Path(folder)
    output.check_folder(folder, OPTION)
    folder.mkdir(exist_ok=True)
    report = content(session, name, findings)
    path = folder / f"{_stem(folder, name)}.json"
    predictions = cost.predict(session.meter)
    output.write(path, (json.dumps(report, allow_nan=False) + "\n").encode(), OPTION)
    for suffix, text in (
        (".md", report_text.markdown(report)),
        (".trace.json", report_trace.trace(session, predictions)),
        (".csv", report_csv.table(session.meter, predictions)),
    ):
        output.write(path.with_suffix(suffix), text.encode(), OPTION)
    visualizer.write(path.with_suffix(".visualizer"), name, session)
    return path


def try_to_write(folder: str | Path, name: str, session: Session, findings: Sequence[Finding]) -> dict[str, str]:
    """:func:`write` beside a verdict, which stands whatever becomes of the report.

    Returns:
        ``report``, the name of its JSON, or ``unreported``, why there is none; the closing summary counts these.
    """
    try:
        return {"report": write(folder, name, session, findings).name}
    except Exception as error:
        message = error.with_flags if isinstance(error, RefsimError) else str(error)
        return {"unreported": f"{type(error).__name__}: {message}"}


def file_name(name: str) -> str:
    """``name`` as a file may be called, not longer than file systems allow."""
    short = re.sub(r"[^\w.=-]+", "_", name).strip("_") or "program"
    return short if len(short) <= 180 else f"{short[:80]}..{short[-98:]}"


def _stem(folder: Path, name: str) -> str:
    """:func:`file_name`, and a digest of ``name`` where another one's report has that name already."""
    stem = file_name(name)
    path, begin = folder / f"{stem}.json", json.dumps({"schema": SCHEMA, "name": name}).removesuffix("}")
    if not path.exists():
        return stem
    with path.open(encoding="utf-8") as file:
        same = file.read(len(begin)) == begin
    return stem if same else f"{stem}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def content(session: Session, name: str = "", findings: Sequence[Finding] | None = None) -> dict[str, Any]:
    """Everything as JSON values; new fields may come, these stay. Bytes are whole numbers, times ns, both of a device.

    * ``schema`` (1), ``name``, ``meshes``: ``mesh`` (id), ``devices``, ``shape``, ``arch``, ``grid`` (columns, rows).
    * ``operations``, one per call: ``number``, ``op``, ``where`` (path:line), ``inputs`` and ``outputs`` (``argument``,
      ``tensor``, ``buffer``, ``address``, ``shape``, ``dtype``, ``layout``, ``memory``, ``sharding``, ``bytes``,
      ``devices``; outputs also ``value``, see :func:`tt_impl.harness.watch.results.described`, null where nobody knows
      it), ``options``, ``collectives``, ``written`` (buffers written in place), ``error``.
    * ``collectives``, in order: ``number``, ``op``, ``where``, ``collective``, ``axis``, ``bytes``, ``topology``,
      ``links``.
    * ``launches``, one per device operation: ``event``, ``op``, ``where``, ``device_op``, ``mesh``, ``cores``,
      ``cb_bytes`` (null where ttnn would not tell), ``fidelity``, and ``ns``, ``low_ns``, ``high_ns``, ``kind``,
      ``bound``, ``measured``, ``assumed`` or ``unpriced``, see :class:`tt_impl.harness.reports.prediction.Prediction`.
    * ``cost``: totals, see :func:`tt_impl.harness.reports.cost.summary`.
    * ``memory``: see :func:`tt_impl.harness.reports.memory.summary`.
    * ``findings``: ``kind``, ``sentence``, ``op``, ``where``; what leaks is among them.
    * ``fallbacks``: operations answered by ttnn's golden functions, and how often.
    """
    if session.meter is None or session.results is None:
        raise UserError("a report needs a program watched with report=True; pass it to watched().")
    used, predictions = memory.summary(session.meter), cost.predict(session.meter)
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
        "cost": cost.summary(session, predictions),
        "memory": used,
        "findings": [*map(_finding, find(session.log) if findings is None else findings), *map(_leak, used["leaks"])],
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


def _launch(prediction: Prediction) -> dict[str, Any]:
    launch = prediction.launch
    return prediction.as_json() | {
        "cores": launch.layout.cores if launch.layout else None,
        "cb_bytes": launch.layout.cb_bytes if launch.layout else None,
        "fidelity": launch.program.fidelity,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in ("kind", "sentence", "op", "where")}


def _leak(leak: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "leak", "sentence": leak["sentence"], "op": leak["op"], "where": leak["where"]}
