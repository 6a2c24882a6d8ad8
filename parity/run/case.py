"""One case, run, judged and recorded; however it fails, it never costs the others' results."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from parity.cases import Case
from parity.explain.explanation import Failure, explain
from parity.explain.places import Evidence
from parity.measure.machine import missing_memory
from parity.measure.records import Record
from parity.measure.thresholds import Threshold, judge
from parity.run.runner import Runner
from refsim.base.errors import RankFailure, RefsimError
from refsim.runtime import launch

Job = tuple[Case, int]
"""A case and the seed it runs with."""


class Progress(Protocol):
    """Told that a job begins, without a record, and that it is over, with one."""

    def __call__(self, case: Case, record: Record | None) -> None: ...


def run_jobs(runner: Runner, backend: str, jobs: Sequence[Job], progress: Progress) -> list[Record]:
    """Return the records of the given cases."""
    records = []
    for case, seed in in_turn(runner, jobs):
        progress(case, None)
        records.append(run_case(runner, case, backend, seed))
        progress(case, records[-1])
    return records


def in_turn(runner: Runner, jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield the jobs; behind the last one that needs what their kind holds of a model and a seed, that is dropped."""
    last = set({(case.kind, case.model, seed): index for index, (case, seed) in enumerate(jobs)}.values())
    for index, (case, seed) in enumerate(jobs):
        yield case, seed
        if index in last:
            runner.drop(case, seed)


def run_case(runner: Runner, case: Case, backend: str, seed: int) -> Record:
    """Run one case and return its record: configuration, what was measured, and the verdict with its reason."""
    started = time.monotonic()
    thresholds = runner.thresholds(case)
    before = Record.of(case, backend, seed, thresholds)
    if missing_memory(case):
        launch.end_ranks()  # what lacks may be what those hold that are kept from the cases before
    if missing := missing_memory(case):
        return replace(before, verdict="skipped", reason=missing)
    fields_of_record = _judged(runner, case, seed, thresholds)
    if fields_of_record["verdict"] == "failed":
        messages = [
            *fields_of_record.get("hazards", ()),
            *([fields_of_record["reason"]] if "error" in fields_of_record else ()),
        ]
        failure = Failure(fields_of_record.get("metrics", {}), before.thresholds, messages, list(runner.trace))
        evidence, problem = _evidence(runner, before, case) if "error" not in fields_of_record else (Evidence(), "")
        why = explain(case, failure, evidence, problem, backend=backend, base_seed=seed - case.seed)
        fields_of_record["extra"] = fields_of_record.get("extra", {}) | {"explanation": why}
    return replace(before, **fields_of_record, wall_s=time.monotonic() - started)


def _judged(runner: Runner, case: Case, seed: int, thresholds: tuple[Threshold, ...]) -> dict[str, Any]:
    """Return the fields of a record that running the case fills in; ``error`` is one where something was raised."""
    try:
        measured = runner.run(case, seed)
    except Exception as e:
        ended = e if isinstance(e, RankFailure) else None
        return {
            "verdict": "failed",
            "reason": e.with_flags if isinstance(e, RefsimError) else f"{type(e).__name__}: {e}",
            "error": (ended.traceback if ended else "") or traceback.format_exc(),
            "last_events": ended.last_events if ended else {},
        }
    failures = judge(measured.metrics, thresholds) + measured.hazards
    shared = {f.name for f in fields(Record)} & {f.name for f in fields(measured)}
    return {
        "verdict": "failed" if failures else "passed",
        "reason": "; ".join(failures),
        **{name: getattr(measured, name) for name in shared},
    }


def _evidence(runner: Runner, record: Record, case: Case) -> tuple[Evidence, str]:
    """Return what a runner finds in the wrong answer of its last run, and why it could not look, if so."""
    try:
        return runner.explain(case, record.seed, record.thresholds), ""
    except Exception as e:  # an explanation that fails must not cost the verdict
        return Evidence(), f"the answer could not be looked into ({type(e).__name__}: {e})"
