"""What one watched program did, in files; :mod:`tt_impl.harness.reports.index` is about all programs of a folder.

``<name>.json`` (everything, see :func:`content`), ``<name>.md`` (for people), ``<name>.trace.json`` (opens in
ui.perfetto.dev), ``<name>.csv`` (opens in tt-perf-report), ``<name>.visualizer/`` (``db.sqlite`` and ``config.json``,
open in ttnn-visualizer). Times are predicted, and every file says so; memory is what ttnn's allocator says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from refsim.base.errors import RefsimError, UserError
from refsim.files import output
from refsim.files.keys import as_json
from tt_impl.harness.checks.find import find
from tt_impl.harness.checks.finding import Finding
from tt_impl.harness.checks.trace_region import living
from tt_impl.harness.reports import cost, exhausted, markdown, peaks, profiler_csv, timeline, visualizer
from tt_impl.harness.reports.index import OPTION, SCHEMA
from tt_impl.harness.reports.prediction import Prediction
from tt_impl.harness.watch.session import Session
from tt_impl.mock.log.events import Event

_OF_CHECKS = ("dead", "uneven", "allocated")
"""Fields of an event that only the checks read."""


def write(folder: str | Path, name: str, session: Session, findings: Sequence[Finding] | None = None) -> Path:
    """Write all files of one program and return the path of its JSON.

    Args:
        folder: is made if it is not there.
        name: of the test or program; what no file name may hold becomes ``_``.
        session: watched with ``report=True``.
        findings: what :func:`tt_impl.harness.checks.find.find` found, if that was asked before.

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
        (".md", markdown.program(report)),
        (".trace.json", timeline.trace(session, predictions)),
        (".csv", profiler_csv.table(session.meter, predictions)),
    ):
        output.write(path.with_suffix(suffix), text.encode(), OPTION)
    visualizer.write(path.with_suffix(".visualizer"), name, session)
    return path


def try_to_write(folder: str | Path, name: str, session: Session, findings: Sequence[Finding]) -> dict[str, str]:
    """Do as :func:`write` does beside a verdict, which stands whatever becomes of the report.

    Returns:
        ``report``, the name of its JSON, or ``unreported``, why there is none; the closing summary counts these.
    """
    try:
        return {"report": write(folder, name, session, findings).name}
    except Exception as error:
        message = error.with_flags if isinstance(error, RefsimError) else str(error)
        return {"unreported": f"{type(error).__name__}: {message}"}


def file_name(name: str) -> str:
    """Make of ``name`` what a file may be called, not longer than file systems allow."""
    short = re.sub(r"[^\w.=-]+", "_", name).strip("_") or "program"
    return short if len(short) <= 180 else f"{short[:80]}..{short[-98:]}"


def _stem(folder: Path, name: str) -> str:
    """Return :func:`file_name`, with a digest of ``name`` where another one's report has that name already."""
    stem = file_name(name)
    path = folder / f"{stem}.json"
    begin = json.dumps({"schema": SCHEMA, "name": name}).removesuffix("}")
    if not path.exists():
        return stem
    with path.open(encoding="utf-8") as file:
        same = file.read(len(begin)) == begin
    return stem if same else f"{stem}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def content(session: Session, name: str, findings: Sequence[Finding] | None) -> dict[str, Any]:
    """Return everything as JSON values; new fields may come, these stay. Bytes are whole, times ns, both of a device.

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
    * ``memory``: see :func:`tt_impl.harness.reports.peaks.summary`; and ``ended`` (of a program that ended out of
      memory, see :func:`tt_impl.harness.reports.exhausted.as_json`, else null), ``traces`` (what each that lives at the
      end holds), ``kernel_binaries`` (an estimate of what a mock does not count).
    * ``findings``: ``kind``, ``sentence``, ``op``, ``where``; what leaks is among them.
    * ``fallbacks``: operations answered by ttnn's golden functions, and how often.
    * ``numerics``: ``level``, and how often operations were ``rounded`` as kernels do, or ``once``; empty if off.
    * ``values``: false where none were computed, so that nothing about values was shown.
    """
    if session.meter is None:
        raise UserError("a report needs a program watched with report=True; pass it to watched().")
    used = peaks.summary(session.meter)
    used["ended"] = exhausted.of_session(session) or None
    used["traces"] = [trace.sentence for trace in living(session.log)]
    used["kernel_binaries"] = exhausted.kernel_binaries(session.meter.programs)
    predictions = cost.predict(session.meter)
    findings = find(session.log) if findings is None else findings
    return {
        "schema": SCHEMA,
        "name": name,
        "meshes": [_mesh(mesh, about) for mesh, about in session.meter.meshes.items()],
        "operations": [_operation(event, session) for event in session.log.events],
        "collectives": [
            {"number": event.number, "op": event.op, "where": event.where} | collective
            for event in session.log.events
            for collective in event.collectives
        ],
        "launches": [_launch(p) for p in predictions],
        "cost": cost.summary(session, predictions),
        "memory": used,
        "findings": [_finding(vars(finding)) for finding in findings]
        + [_finding(leak | {"kind": "leak"}) for leak in (*used["leaks"], *used["growing"])],
        "fallbacks": dict(session.fallbacks),
        "numerics": session.numerics,
        "values": session.shadow.computes,
    }


def _mesh(mesh: int, about: dict[str, Any]) -> dict[str, Any]:
    return {"mesh": mesh} | {name: about[name] for name in ("devices", "shape", "arch", "grid")}


def _operation(event: Event, session: Session) -> dict[str, Any]:
    values = [] if session.results is None else session.results.of.get(event.number, [])
    operation = {name: value for name, value in as_json(event).items() if name not in _OF_CHECKS}
    for tensor, value in zip_longest(operation["outputs"], values[: len(event.outputs)]):
        tensor["value"] = value
    return operation


def _launch(prediction: Prediction) -> dict[str, Any]:
    launch = prediction.launch
    return prediction.as_json() | {
        "cores": launch.layout.cores if launch.layout else None,
        "cb_bytes": launch.layout.cb_bytes if launch.layout else None,
        "fidelity": launch.program.fidelity,
    }


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    return {name: finding[name] for name in ("kind", "sentence", "op", "where")}
