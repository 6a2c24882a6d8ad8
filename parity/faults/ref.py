"""The reference's faults, run: each must fail the gate of its case, leave a hazard or a mark in the trace, or be
refused in words that name its nature. Clean cases run first, through the same checks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from parity.cases import Case
from parity.faults import ref_attention, ref_decoder, ref_decoding, ref_model, ref_runtime  # noqa: F401 - they register
from parity.faults.records import SEED, Progress, Record, new_record, note_metrics, note_verdict
from parity.faults.registry import FAULTS, Fault
from parity.kinds import thresholds_for
from parity.kinds.base import Measured
from parity.measure import traces
from parity.measure.thresholds import Threshold
from parity.run.cpu_runner import CpuRunner
from refsim.base.errors import RefsimError

BACKEND = "cpu"
TIMEOUT_S = 10.0
TRACE = (
    *traces.BOUNDS,
    Threshold("trace_changed", 0, "the same transfers and compute steps as the program without the fault"),
    Threshold("hazards", 0, "no two uses of a buffer that nothing keeps apart"),
)


def ref_faults() -> dict[str, Fault]:
    """The faults of ``refsim`` by id."""
    return {name: fault for name, fault in FAULTS.items() if fault.backend == BACKEND}


def run(ids: Iterable[str] | None = None, progress: Progress | None = None) -> list[Record]:
    """As :func:`parity.faults.ttnn.run.run`, on CPU ranks."""
    known = ref_faults()
    chosen = list(known.values()) if ids is None else [known[name] for name in ids]
    cases = list(dict.fromkeys(fault.case for fault in chosen))
    jobs: list[tuple[Case, Fault | None]] = [*((case, None) for case in cases), *((f.case, f) for f in chosen)]
    records: list[Record] = []
    clean: dict[Case, list[dict[str, Any]]] = {}
    with CpuRunner() as runner:
        for case, fault in jobs:
            records.append(_record(runner, case, fault, clean))
            if progress:
                progress(len(records), len(jobs), records[-1])
    return records


def _record(runner: CpuRunner, case: Case, fault: Fault | None, clean: dict[Case, list[dict[str, Any]]]) -> Record:
    bounds = tuple({t.metric: t for t in (*thresholds_for(case.kind, case.dtype), *TRACE)}.values())
    record, started = new_record(case, fault, BACKEND, bounds), time.monotonic()
    name = f"{fault.inject.__module__}:{fault.inject.__name__}" if fault else ""
    try:
        measured = runner.run(case, SEED, fault=name, trace=True, timeout_s=TIMEOUT_S)
        note_metrics(record, _metrics(measured, case, fault, clean), bounds)
    except RefsimError as e:
        record["error"] = f"{type(e).__name__}: {e}"
    record["seconds"] = time.monotonic() - started
    note_verdict(record, fault)
    return record


def _metrics(
    measured: Measured, case: Case, fault: Fault | None, clean: dict[Case, list[dict[str, Any]]]
) -> dict[str, Any]:
    found = {**measured.metrics, **traces.check(measured.trace, case.layout), "hazards": len(measured.hazards)}
    if fault is None:
        clean[case] = measured.trace
    return found | {"trace_changed": traces.traffic_changed(measured.trace, clean.get(case, measured.trace))}
