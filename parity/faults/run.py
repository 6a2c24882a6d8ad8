"""The faults of a backend, run: each must fail its case's gate or be refused in words that name its nature.

Clean cases run first, through the same checks: a gate that fails a clean program catches everything and shows nothing.
On CPU ranks a hazard counts as well, and a mark in the trace. A fault is

    caught      a metric of the case is beyond its bound, or the run is refused by an error that the fault ``says``
    survived    the answer passes, or the run ends in some other error, which would be the fault's own bug
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from parity.cases import Case
from parity.cases.suites import registry
from parity.faults import (  # noqa: F401 - they register
    ref_attention,
    ref_decoder,
    ref_decoding,
    ref_flux2,
    ref_mochi,
    ref_model,
    ref_qwenimage,
    ref_runtime,
)
from parity.faults.records import SEED, Progress, Record
from parity.faults.registry import FAULTS, Fault
from parity.faults.ttnn import (  # noqa: F401 - they register
    attention,
    cogvideox,
    collectives,
    decoding,
    flux2,
    mochi,
    paged_cache,
    pipeline,
    program,
    qwenimage,
    text_encoders,
    usp,
    vae,
    wan,
    weights,
)
from parity.kinds import thresholds_for
from parity.measure import traces
from parity.measure.thresholds import Metrics, Threshold
from parity.run.cpu import CpuRunner
from refsim.base.errors import RefsimError

TIMEOUT_S = 10.0
TRACE = (
    *traces.BOUNDS,
    Threshold("trace_changed", 0, "the same transfers and compute steps as the program without the fault"),
    Threshold("hazards", 0, "no two uses of a buffer that nothing keeps apart"),
)

Job = tuple[Case, Fault | None]
Measure = Callable[[Record], Metrics]
"""Runs a job and gives its metrics; notes in the record what it took."""


def corpus(backend: str) -> dict[str, Fault]:
    """Return the faults of ``cpu`` (of ``refsim``) or of ``ttnn-mock`` (of ``tt_impl``) by id."""
    return {name: fault for name, fault in FAULTS.items() if fault.backend == backend}


def run(backend: str, ids: Iterable[str] | None = None, progress: Progress | None = None) -> list[Record]:
    """Run the clean cases of the faults ``ids`` (None: all), then the faults.

    Returns:
        One record each, clean ones first, see :data:`parity.faults.records.Record`.

    Raises:
        UserError: the backend is TTNN's and ttnn is not installed.
    """
    registry()  # the suites register the checkpoints of the cases
    known = corpus(backend)
    chosen = list(known.values()) if ids is None else [known[name] for name in ids]
    jobs: list[Job] = [
        *((case, None) for case in dict.fromkeys(f.case for f in chosen)),
        *((f.case, f) for f in chosen),
    ]
    started = {"cpu": _on_ranks, "ttnn-mock": _on_ttnn}[backend](jobs)
    records: list[Record] = []
    for (case, fault), measure in zip(jobs, started, strict=True):
        bounds = thresholds_for(case.kind, case.dtype)
        if backend == "cpu":
            bounds = tuple({t.metric: t for t in (*bounds, *TRACE)}.values())
        record = Record.of(case, fault, backend, bounds)
        try:
            record.note_metrics(measure(record), bounds)
        except RefsimError as e:
            record.error = f"{type(e).__name__}: {e}"
        record.note_verdict(fault)
        records.append(record)
        if progress:
            progress(len(records), len(jobs), record)
    return records


def _on_ranks(jobs: list[Job]) -> Iterator[Measure]:
    """Run each job when it is measured, on ranks of one pool."""
    clean: dict[Case, list[dict[str, Any]]] = {}
    with CpuRunner() as runner:
        for case, fault in jobs:
            yield partial(_measure_ranks, runner, case, fault, clean)


def _measure_ranks(
    runner: CpuRunner, case: Case, fault: Fault | None, clean: dict[Case, list[dict[str, Any]]], record: Record
) -> Metrics:
    started = time.monotonic()
    try:
        name = fault.reference if fault else ""
        measured = runner.run(case, SEED, fault=name, trace=True, timeout_s=TIMEOUT_S)
    finally:
        record.seconds = time.monotonic() - started
    if fault is None:
        clean[case] = measured.trace
    metrics = {**measured.metrics, **traces.check(measured.trace, case.layout), "hazards": len(measured.hazards)}
    return metrics | {"trace_changed": traces.traffic_changed(measured.trace, clean.get(case, measured.trace))}


def _on_ttnn(jobs: list[Job]) -> Iterator[Measure]:
    """Start all jobs at once; they wait for a process of their own."""
    from parity.cases.suites import registry
    from parity.run.backends import check_environment, make_runner
    from parity.run.ttnn import TTNNRunner

    registry()  # the suites register the checkpoints of their cases
    check_environment([case for case, fault in jobs if fault is None])
    with cast(TTNNRunner, make_runner("ttnn-mock")) as runner:
        futures = [runner.start(case, SEED, fault=fault.reference if fault else "") for case, fault in jobs]
        for (case, _), future in zip(jobs, futures, strict=True):
            yield partial(_measure_ttnn, runner, case, future)


def _measure_ttnn(runner: Any, case: Case, future: Any, record: Record) -> Metrics:
    outcome, record.seconds = future.result()
    return runner.measure(case, SEED, outcome).metrics
