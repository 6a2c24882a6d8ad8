"""The record of a fault, or of the clean case that it is put into, and when a corpus is good."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from parity.cases import Case
from parity.faults.registry import Fault
from parity.measure.thresholds import Metrics, Threshold, judge

SEED = 7
"""Of weights and inputs of every case."""

Record = dict[str, Any]
"""``id``, ``kind`` (``clean`` or ``fault``), ``backend``, ``family``, ``sentence``, ``mistake``, ``case``,
``verdict`` (``passed`` or ``false alarm``; ``caught`` or ``survived``), ``caught_by`` (``metric``, ``value``,
``threshold`` of every bound exceeded, the furthest first), ``error`` (what refused it), ``metrics``, ``thresholds`` and
``seconds`` (None if refused)."""

Progress = Callable[[int, int, Record], None]
"""Called with (number of the record from 1, total, record)."""


def new_record(case: Case, fault: Fault | None, backend: str, bounds: Iterable[Threshold]) -> Record:
    """Return the record before anything has run."""
    return {
        "id": fault.id if fault else case.id,
        "kind": "fault" if fault else "clean",
        "backend": backend,
        **{key: getattr(fault, key, "") for key in ("family", "sentence", "mistake")},
        "case": case.id,
        "caught_by": [],
        "error": "",
        "metrics": {},
        "thresholds": {t.metric: t.limit for t in bounds},
        "seconds": None,
    }


def note_metrics(record: Record, metrics: Metrics, bounds: Iterable[Threshold]) -> None:
    """Put what was measured into the record, and the bounds that it exceeds."""
    record["metrics"] = metrics
    exceeded = [
        {"metric": t.metric, "value": metrics.get(t.metric), "threshold": t.limit}
        for t in bounds
        if judge(metrics, (t,))
    ]
    record["caught_by"] = sorted(exceeded, key=_excess, reverse=True)


def note_verdict(record: Record, fault: Fault | None) -> None:
    """Put the verdict into the record: an error catches a fault only if it ``says`` the fault's nature."""
    if fault is None:
        record["verdict"] = "false alarm" if record["caught_by"] or record["error"] else "passed"
        return
    named = bool(record["error"] and fault.says and re.search(fault.says, record["error"]))
    record["verdict"] = "caught" if record["caught_by"] or named else "survived"


def is_good(records: list[Record]) -> bool:
    """No clean case failed and no fault survived."""
    return all(record["verdict"] in ("passed", "caught") for record in records)


def _excess(exceeded: dict[str, Any]) -> float:
    """How many times its bound a metric is; NaN and what was not measured are beyond everything."""
    value, limit = exceeded["value"], exceeded["threshold"]
    if value is None or value != value:
        return float("inf")
    return value / limit if limit else 1.0  # a count says that something is wrong, not how much
