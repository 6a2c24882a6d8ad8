"""The device wing's faults, run: each must fail the gate of its case or be refused in words that name its nature.

Clean cases run first: a gate that fails a clean wing catches everything and shows nothing. A fault is

    caught      a metric of the case is beyond its bound, or the run is refused by an error that the fault ``says``
    survived    the answer passes, or the run ends in some other error, which would be the fault's own bug
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from parity.cases import Case
from parity.faults import (  # noqa: F401 - they register
    wing_attention,
    wing_collectives,
    wing_decoding,
    wing_program,
    wing_weights,
)
from parity.faults.registry import FAULTS, Fault
from parity.thresholds import judge, thresholds_for
from refsim.errors import RefsimError

SEED = 7
Record = dict[str, Any]
Progress = Callable[[int, int, Record], None]


def wing_faults() -> dict[str, Fault]:
    """The device wing's faults by id."""
    return {name: fault for name, fault in FAULTS.items() if fault.wing == "tt_impl"}


def run(ids: Iterable[str] | None = None, progress: Progress | None = None) -> list[Record]:
    """Run the clean cases of the faults ``ids`` (None: all), then the faults, each in a process of its own.

    Args:
        progress: called with (number of the record from 1, total, record).

    Returns:
        One record each, clean ones first: ``id``, ``kind`` (``clean`` or ``fault``), ``wing``, ``family``,
        ``sentence``, ``stands_for``, ``case``, ``verdict`` (``passed`` or ``false alarm``; ``caught`` or
        ``survived``), ``caught_by`` (``metric``, ``value``, ``threshold`` of every bound exceeded, the furthest
        first), ``error`` (what refused it), ``metrics``, ``thresholds`` and ``seconds`` (None if refused).

    Raises:
        UserError: ttnn is not installed.
    """
    from parity.gate import check_environment, make_runner

    known = wing_faults()
    chosen = list(known.values()) if ids is None else [known[name] for name in ids]
    cases = list(dict.fromkeys(fault.case for fault in chosen))
    jobs: list[tuple[Case, Fault | None]] = [*((case, None) for case in cases), *((f.case, f) for f in chosen)]
    check_environment(cases)
    records = []
    with make_runner("ttnn-mock") as runner:
        started = [(case, fault, runner.start(case, SEED, fault=_named(fault))) for case, fault in jobs]
        for case, fault, future in started:
            record = _record(runner, case, fault, future)
            records.append(record)
            if progress:
                progress(len(records), len(jobs), record)
    return records


def is_good(records: list[Record]) -> bool:
    """No clean case failed and no fault survived."""
    return all(record["verdict"] in ("passed", "caught") for record in records)


def _named(fault: Fault | None) -> str:
    return f"{fault.inject.__module__}:{fault.inject.__name__}" if fault else ""


def _record(runner: Any, case: Case, fault: Fault | None, future: Any) -> Record:
    bounds = thresholds_for(case.kind, case.dtype)
    record: Record = {
        "id": fault.id if fault else case.id,
        "kind": "fault" if fault else "clean",
        "wing": "tt_impl",
        **{key: getattr(fault, key, "") for key in ("family", "sentence", "stands_for")},
        "case": case.id,
        "caught_by": [],
        "error": "",
        "metrics": {},
        "thresholds": {t.metric: t.limit for t in bounds},
    }
    seconds, named = None, False
    try:
        outcome, seconds = future.result()
        measured = runner.measure(case, SEED, outcome)
    except RefsimError as e:
        record["error"] = f"{type(e).__name__}: {e}"
        named = bool(fault and fault.says and re.search(fault.says, record["error"]))
    else:
        record["metrics"] = measured.metrics
        exceeded = [t for t in bounds if judge(measured.metrics, (t,))]
        record["caught_by"] = ordered(
            {"metric": t.metric, "value": measured.metrics.get(t.metric), "threshold": t.limit} for t in exceeded
        )
    record["seconds"] = seconds
    failed = bool(record["caught_by"] or record["error"])
    if fault:
        record["verdict"] = "caught" if record["caught_by"] or named else "survived"
    else:
        record["verdict"] = "false alarm" if failed else "passed"
    return record


def ordered(exceeded: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was exceeded, the furthest first."""
    return sorted(exceeded, key=_excess, reverse=True)


def _excess(exceeded: dict[str, Any]) -> float:
    """How many times its bound a metric is; NaN and what was not measured are beyond everything."""
    value, limit = exceeded["value"], exceeded["threshold"]
    if value is None or value != value:
        return float("inf")
    return value / limit if limit else 1.0  # a count says that something is wrong, not how much
