"""Run a suite case by case and judge every case; one that fails, however it fails, never costs the others' results."""

from __future__ import annotations

import importlib.util
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from parity.cases import Case
from parity.cases.kinds import entry
from parity.cases.selection import compile_expression, part_of
from parity.cases.suites import registry, suite_cases
from parity.explain import explanation
from parity.kinds import thresholds_for
from parity.measure.machine import commit, machine, missing_memory, versions
from parity.measure.records import Record, SuiteRun
from parity.measure.thresholds import judge
from parity.report import report
from parity.run import lanes
from refsim.base.errors import RankFailure, RefsimError, UserError
from refsim.base.options import BACKENDS
from refsim.runtime import launch

Progress = Callable[[int, int, Case, "Record | None"], None]
"""Called with (number from 1, total, case, None) before a case and with its record after it; with several at a time,
the number counts those that are over."""


class Runner(Protocol):
    """What runs cases on a backend; a context manager that holds what cases share."""

    def __enter__(self) -> Runner: ...
    def __exit__(self, *error: object) -> None: ...
    def run(self, case: Case, seed: int) -> Any: ...
    def drop(self, case: Case, seed: int) -> None: ...


@dataclass(frozen=True)
class Asked:
    """What a run is asked to judge.

    Attributes:
        suite: ``smoke`` or ``full``.
        expr: ``-k`` expression on case ids.
        backend: what computes.
        seed: of weights and inputs; a case adds its own.
        seeds: how many, from ``seed`` on; with more than one, a record's id ends in its seed.
        part: ``I/N``, the cases of part I of N; None takes all.
    """

    suite: str = "smoke"
    expr: str | None = None
    backend: str = "cpu"
    seed: int = 0
    seeds: int = 1
    part: str | None = None

    def jobs(self, cases: Sequence[Case]) -> list[lanes.Job]:
        """The cases with their seeds, in the order of their records."""
        return [(case, self.seed + offset + case.seed) for offset in range(self.seeds) for case in cases]

    def named(self, record: Record) -> Record:
        """The record under the id that it has in this run."""
        return replace(record, id=f"{record.id}-seed{record.seed}") if self.seeds > 1 else record


def select(suite: str, expr: str | None, backend: str = "cpu", part: str | None = None) -> list[Case]:
    """The cases of a suite on a backend whose id matches ``-k``, or those of part ``I/N`` of them.

    Raises:
        UserError: no such suite, backend or part, a malformed expression, or nothing matches.
    """
    if backend not in BACKENDS:
        raise UserError(f"backend '{backend}' does not exist; choose one of {', '.join(BACKENDS)}.")
    match = compile_expression(expr)
    cases = [case for case in suite_cases(suite, backend) if match(case.id)]
    if not cases:
        notes = "".join(f"; {problem}" for problem in registry().problems)
        raise UserError(f"no case of suite '{suite}' matches -k '{expr}'; `refsim parity list` prints the ids{notes}.")
    return cases if part is None else _part(cases, part)


def _part(cases: Sequence[Case], text: str) -> list[Case]:
    """Part I of N for ``I/N``; all N parts together are the whole, as equal in number of cases as can be.

    Cases of one model stay in one part, because they share its checkpoint and its oracle's output.
    """
    number, count = part_of(text)
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.kind, case.model if entry(case.kind).checkpoint else case.id), []).append(case)
    parts: list[list[Case]] = [[] for _ in range(count)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(parts, key=len).extend(group)
    chosen = {case.id for case in parts[number - 1]}
    if not chosen:
        raise UserError(f"part {text} has no case; choose fewer parts.")
    return [case for case in cases if case.id in chosen]


def run_suite(
    asked: Asked,
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    jobs: int | None = 1,
) -> SuiteRun:
    """Run and judge the cases of a suite; writes results.json, junit.xml, parity.md.

    Args:
        out_dir: folder for the reports, made if need be; None writes nothing.
        jobs: cases at a time on the CPU backend, each in a process of its own; None: as many as there are cores, up to
            :data:`parity.run.lanes.MOST`. With 1 all run in this process. The others' programs run two at a time.

    Raises:
        UserError: unknown suite, backend or part, ``-k`` that matches nothing, missing oracle, unusable ``out_dir``,
            ``jobs`` for another backend.
    """
    cases = select(asked.suite, asked.expr, asked.backend, asked.part)
    check_environment(cases)
    if (count := lanes.count(asked.jobs(cases), jobs, asked.backend)) > 1:
        return _written(asked, out_dir, lambda: lanes.run(asked.jobs(cases), count, _counted(progress, asked, cases)))
    return run_cases(cases, make_runner(asked.backend), asked, out_dir, progress)


def run_cases(
    cases: Sequence[Case],
    runner: Runner,
    asked: Asked = Asked(),
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> SuiteRun:
    """Run and judge the given cases one after the other by the given runner, as :func:`run_suite` does."""
    jobs = asked.jobs(cases)

    def run() -> list[Record]:
        with runner:
            if (plan := getattr(runner, "plan", None)) is not None:
                plan(jobs)
            return run_jobs(runner, asked.backend, jobs, _counted(progress, asked, cases))

    return _written(asked, out_dir, run)


def run_jobs(runner: Runner, backend: str, jobs: Sequence[lanes.Job], progress: lanes.Progress) -> list[Record]:
    """The records of the given cases, run one after the other; what only one of them needs is dropped after it."""
    last_use = {(case.kind, case.model, seed): index for index, (case, seed) in enumerate(jobs)}
    records = []
    for index, (case, seed) in enumerate(jobs):
        progress(case, None)
        records.append(run_case(runner, case, backend, seed))
        if last_use[case.kind, case.model, seed] == index:
            runner.drop(case, seed)
        progress(case, records[-1])
    return records


def _written(asked: Asked, out_dir: str | Path | None, run: Callable[[], list[Record]]) -> SuiteRun:
    """What ``run`` gives, and what it was run with; reports are written into ``out_dir`` unless it is None."""
    folder = _make_folder(out_dir)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    own = (asked.suite, asked.expr, asked.backend, asked.seed)
    done = SuiteRun(*own, versions(), machine(), started, part=asked.part, **commit())
    begun = time.monotonic()
    done.records = [asked.named(record) for record in run()]
    done.wall_s = time.monotonic() - begun
    if folder is not None:
        report.write_all(done, folder)
    return done


def _counted(progress: Progress | None, asked: Asked, cases: Sequence[Case]) -> lanes.Progress:
    """``progress`` told the number of cases that are over, and of all."""
    total, over = len(asked.jobs(cases)), 0

    def tell(case: Case, record: Record | None) -> None:
        nonlocal over
        over += record is not None
        if progress:
            progress(over + (record is None), total, case, record and asked.named(record))

    return tell


def run_case(runner: Runner, case: Case, backend: str, seed: int) -> Record:
    """The record of one case: its configuration, what was measured, and the verdict with its reason."""
    thresholds = thresholds_for(case.kind, case.dtype)
    record = Record.of(case, backend, seed, thresholds)
    started = time.monotonic()
    if missing_memory(case):
        launch.end_ranks()  # what lacks may be what those hold that are kept from the cases before
    missing = missing_memory(case)
    if missing:
        return replace(record, verdict="skipped", reason=missing)
    try:
        measured = runner.run(case, seed)
    except Exception as e:
        ended = e if isinstance(e, RankFailure) else None
        record = replace(
            record,
            reason=e.with_flags if isinstance(e, RefsimError) else f"{type(e).__name__}: {e}",
            error=(ended.traceback if ended else "") or traceback.format_exc(),
            last_events=ended.last_events if ended else {},
        )
    else:
        failures = judge(measured.metrics, thresholds) + measured.hazards
        kept = {f.name for f in fields(record)} & {f.name for f in fields(measured)}
        record = replace(
            record,
            verdict="failed" if failures else "passed",
            reason="; ".join(failures),
            **{name: getattr(measured, name) for name in kept},
        )
    if record.verdict == "failed":
        why = explanation.of_case(runner, case, seed - case.seed, record)
        record = replace(record, extra=record.extra | {"explanation": why})
    return replace(record, wall_s=time.monotonic() - started)


def make_runner(backend: str) -> Runner:
    """The runner of a backend; ``UserError`` if this Python lacks what it needs."""
    if backend == "cpu":
        from parity.run.cpu_runner import CpuRunner

        return CpuRunner()
    if importlib.util.find_spec("ttnn") is None:
        raise UserError(
            f"backend {backend} needs ttnn, which is not installed in this Python; "
            "pip install 'refsim[ttnn]' in Python 3.10 or 3.12."
        )
    from parity.run.ttnn_runner import TTNNRunner

    return TTNNRunner(backend)


def check_environment(cases: Sequence[Case]) -> None:
    """Raise ``UserError`` if these cases cannot run here."""
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("refsim parity starts its own ranks; run it without torchrun.")
    if any(entry(case.kind).checkpoint for case in cases) and importlib.util.find_spec("diffusers") is None:
        raise UserError(
            "model cases are judged against diffusers, which is not installed; "
            "pip install 'refsim[oracle]' or choose -k attention."
        )


def _make_folder(out_dir: str | Path | None) -> Path | None:
    if out_dir is None:
        return None
    folder = Path(out_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"--out '{out_dir}' cannot be made a folder ({e.strerror}); choose another path.") from e
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out '{out_dir}' is not writable; choose another folder.")
    return folder
