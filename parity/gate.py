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

from parity import report
from parity.cases import Case
from parity.explain import explanation
from parity.kinds import entry, thresholds_for
from parity.machine import commit, machine, missing_memory, versions
from parity.records import Record, SuiteRun
from parity.selection import compile_expression, part_of
from parity.suites import registry, suite_cases
from parity.thresholds import judge
from refsim.errors import RankFailure, RefsimError, UserError
from refsim.options import BACKENDS
from refsim.runtime import launch

Progress = Callable[[int, int, Case, "Record | None"], None]
"""Called with (index from 1, total, case, None) before a case and with its record after it."""


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
    suite: str = "smoke",
    expr: str | None = None,
    backend: str = "cpu",
    seed: int = 0,
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    seeds: int = 1,
    part: str | None = None,
) -> SuiteRun:
    """Run and judge the cases of a suite one after the other; writes results.json, junit.xml, parity.md.

    Args:
        suite, expr, backend, seed, seeds, part: see :class:`Asked`.
        out_dir: folder for the reports, made if need be; None writes nothing.

    Raises:
        UserError: unknown suite, backend or part, ``-k`` that matches nothing, missing oracle, unusable ``out_dir``.
    """
    cases = select(suite, expr, backend, part)
    check_environment(cases)
    asked = Asked(suite, expr, backend, seed, seeds, part)
    return run_cases(cases, make_runner(backend), asked, out_dir, progress)


def run_cases(
    cases: Sequence[Case],
    runner: Runner,
    asked: Asked = Asked(),
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> SuiteRun:
    """Run and judge the given cases by the given runner, as :func:`run_suite` does."""
    folder = _make_folder(out_dir)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    own = (asked.suite, asked.expr, asked.backend, asked.seed)
    run = SuiteRun(*own, versions(), machine(), started, part=asked.part, **commit())
    begun = time.monotonic()
    jobs = [(case, asked.seed + offset + case.seed) for offset in range(asked.seeds) for case in cases]
    last_use = {(case.kind, case.model, seed): index for index, (case, seed) in enumerate(jobs, 1)}
    with runner:
        if (plan := getattr(runner, "plan", None)) is not None:
            plan(jobs)
        for index, (case, seed) in enumerate(jobs, 1):
            if progress:
                progress(index, len(jobs), case, None)
            record = run_case(runner, case, asked.backend, seed)
            if asked.seeds > 1:
                record = replace(record, id=f"{record.id}-seed{seed}")
            run.records.append(record)
            if last_use[case.kind, case.model, seed] == index:
                runner.drop(case, seed)
            if progress:
                progress(index, len(jobs), case, record)
    run.wall_s = time.monotonic() - begun
    if folder is not None:
        report.write_all(run, folder)
    return run


def run_case(runner: Runner, case: Case, backend: str, seed: int) -> Record:
    """The record of one case: its configuration, what was measured, and the verdict with its reason."""
    thresholds = thresholds_for(case.kind, case.dtype)
    record = Record.of(case, backend, seed, {t.metric: t.limit for t in thresholds})
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
        from parity.cpu_runner import CpuRunner

        return CpuRunner()
    if importlib.util.find_spec("ttnn") is None:
        raise UserError(
            f"backend {backend} needs ttnn, which is not installed in this Python; "
            "pip install 'refsim[ttnn]' in Python 3.10 or 3.12."
        )
    from parity.ttnn_runner import TTNNRunner

    return TTNNRunner(backend)


def check_environment(cases: Sequence[Case]) -> None:
    """Raise ``UserError`` if these cases cannot run here."""
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("refsim parity starts its own ranks; run it without torchrun.")
    if any(entry(case.kind).checkpoint for case in cases):
        try:
            import diffusers  # noqa: F401
        except ImportError as e:
            raise UserError(
                "model cases are judged against diffusers, which is not installed; "
                "pip install 'refsim[oracle]' or choose -k attention."
            ) from e


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
