"""The reference wing's faults, run: each must fail the gate of its case, leave a hazard or a mark in the trace, or be
refused in words that name its nature. Clean cases run first, through the same checks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

from parity import traces
from parity.cases import Case
from parity.faults import ref_attention, ref_decoder, ref_decoding, ref_model, ref_runtime  # noqa: F401 - they register
from parity.faults.registry import FAULTS, Fault
from parity.faults.wing import Progress, Record, ordered
from parity.runners import CpuRunner, Measured
from parity.thresholds import Threshold, judge, thresholds_for
from refsim.errors import RefsimError

SEED = 7
TIMEOUT_S = 10.0
TRACE = (
    Threshold("trace_without_overlap", 0, "every ring step but the last computes while the next shard travels"),
    Threshold("trace_cfg_in_turn", 0, "guidance branches have devices of their own and run at the same time"),
    Threshold("trace_wrong_axis", 0, "a group's transfers stay on its mesh axis"),
    Threshold("trace_wrong_topology", 0, "a Ring needs a wrap-around link, a Line must not leave one idle"),
    Threshold("trace_changed", 0, "the same transfers and compute steps as the program without the fault"),
    Threshold("hazards", 0, "no two uses of a buffer that nothing keeps apart"),
)


def ref_faults() -> dict[str, Fault]:
    """The reference wing's faults by id."""
    return {name: fault for name, fault in FAULTS.items() if fault.wing == "refsim"}


def run(ids: Iterable[str] | None = None, progress: Progress | None = None) -> list[Record]:
    """As ``parity.faults.wing.run``, on CPU ranks."""
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
    bounds = (*thresholds_for(case.kind, case.dtype), *TRACE)
    record: Record = {
        "id": fault.id if fault else case.id,
        "kind": "fault" if fault else "clean",
        "wing": "refsim",
        **{key: getattr(fault, key, "") for key in ("family", "sentence", "stands_for")},
        "case": case.id,
        "caught_by": [],
        "error": "",
        "metrics": {},
        "thresholds": {t.metric: t.limit for t in bounds},
    }
    started, named = time.monotonic(), False
    name = f"{fault.inject.__module__}:{fault.inject.__name__}" if fault else ""
    try:
        measured = runner.run(case, SEED, fault=name, trace=True, timeout_s=TIMEOUT_S)
    except RefsimError as e:
        record["error"] = f"{type(e).__name__}: {e}"
        named = bool(fault and fault.says and re.search(fault.says, record["error"]))
    else:
        record["metrics"] = _metrics(measured, case, fault, clean)
        exceeded = [t for t in bounds if judge(record["metrics"], (t,))]
        record["caught_by"] = ordered(
            {"metric": t.metric, "value": record["metrics"].get(t.metric), "threshold": t.limit} for t in exceeded
        )
    record["seconds"] = time.monotonic() - started
    if fault:
        record["verdict"] = "caught" if record["caught_by"] or named else "survived"
    else:
        record["verdict"] = "false alarm" if record["caught_by"] or record["error"] else "passed"
    return record


def _metrics(
    measured: Measured, case: Case, fault: Fault | None, clean: dict[Case, list[dict[str, Any]]]
) -> dict[str, Any]:
    found = {**measured.metrics, **traces.check(measured.trace, case.layout), "hazards": len(measured.hazards)}
    if fault is None:
        clean[case] = measured.trace
    return found | {"trace_changed": traces.traffic_changed(measured.trace, clean.get(case, measured.trace))}
