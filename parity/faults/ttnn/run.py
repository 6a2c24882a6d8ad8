"""The faults of the device backend, run: each must fail its case's gate or be refused in words that name its nature.

Clean cases run first: a gate that fails a clean program catches everything and shows nothing. A fault is

    caught      a metric of the case is beyond its bound, or the run is refused by an error that the fault ``says``
    survived    the answer passes, or the run ends in some other error, which would be the fault's own bug
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from parity.cases import Case
from parity.faults.records import SEED, Progress, Record, new_record, note_metrics, note_verdict
from parity.faults.registry import FAULTS, Fault
from parity.faults.ttnn import (  # noqa: F401 - they register
    attention,
    cogvideox,
    collectives,
    decoding,
    paged_cache,
    pipeline,
    program,
    text_encoders,
    usp,
    vae,
    wan,
    weights,
)
from parity.kinds import thresholds_for
from refsim.base.errors import RefsimError

BACKEND = "ttnn-mock"


def ttnn_faults() -> dict[str, Fault]:
    """The faults of ``tt_impl`` by id."""
    return {name: fault for name, fault in FAULTS.items() if fault.backend == BACKEND}


def run(ids: Iterable[str] | None = None, progress: Progress | None = None) -> list[Record]:
    """Run the clean cases of the faults ``ids`` (None: all), then the faults, each in a process of its own.

    Returns:
        One record each, clean ones first, see :data:`parity.faults.records.Record`.

    Raises:
        UserError: ttnn is not installed.
    """
    from parity.cases.suites import registry
    from parity.run.gate import check_environment, make_runner
    from parity.run.ttnn_runner import TTNNRunner

    registry()  # the suites register the checkpoints of their cases
    known = ttnn_faults()
    chosen = list(known.values()) if ids is None else [known[name] for name in ids]
    cases = list(dict.fromkeys(fault.case for fault in chosen))
    jobs: list[tuple[Case, Fault | None]] = [*((case, None) for case in cases), *((f.case, f) for f in chosen)]
    check_environment(cases)
    records = []
    with cast(TTNNRunner, make_runner(BACKEND)) as runner:
        started = [(case, fault, runner.start(case, SEED, fault=_named(fault))) for case, fault in jobs]
        for case, fault, future in started:
            record = _record(runner, case, fault, future)
            records.append(record)
            if progress:
                progress(len(records), len(jobs), record)
    return records


def _named(fault: Fault | None) -> str:
    return f"{fault.inject.__module__}:{fault.inject.__name__}" if fault else ""


def _record(runner: Any, case: Case, fault: Fault | None, future: Any) -> Record:
    bounds = thresholds_for(case.kind, case.dtype)
    record = new_record(case, fault, BACKEND, bounds)
    try:
        outcome, record["seconds"] = future.result()
        note_metrics(record, runner.measure(case, SEED, outcome).metrics, bounds)
    except RefsimError as e:
        record["error"] = f"{type(e).__name__}: {e}"
    note_verdict(record, fault)
    return record
