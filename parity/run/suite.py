"""Run the cases of a suite, here or in several processes, and write what became of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from parity.cases import Case
from parity.cases.selection import select
from parity.measure.machine import commit, machine, versions
from parity.measure.records import Record, SuiteRun
from parity.report import results
from parity.run import workers
from parity.run.backends import check_environment, check_numerics, make_runner
from parity.run.case import Job, run_jobs
from parity.run.case import Progress as Tell
from parity.run.runner import Runner
from refsim.base.errors import UserError
from refsim.base.options import Numerics

Progress = Callable[[int, int, Case, "Record | None"], None]
"""Called with (number from 1, total, case, None) before a case and with its record after it; with several at a time,
the number counts those that are over."""


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
        numerics: how ttnn-mock rounds: ``off``, ``fast`` or ``exact``.
    """

    suite: str = "smoke"
    expr: str | None = None
    backend: str = "cpu"
    seed: int = 0
    seeds: int = 1
    part: str | None = None
    numerics: Numerics = "off"


@dataclass(frozen=True)
class Selected:
    """What a run was asked for and what it comes to, found once.

    Attributes:
        jobs: the cases with their seeds, in the order of their records.
        workers: processes that run them; with 1 it is this one.
    """

    asked: Asked
    jobs: list[Job]
    workers: int = 1

    @classmethod
    def of(cls, asked: Asked, cases: Sequence[Case] | None = None, *, workers_asked: int | None = 1) -> Selected:
        """Take the given cases, or by default those that are asked for.

        Args:
            workers_asked: cases at a time on the CPU backend, each in a process of its own; None: as many as there are
                cores, up to :data:`parity.run.workers.MOST`. The other backends' programs run two at a time.

        Raises:
            UserError: unknown suite, backend or part, ``-k`` that matches nothing, several workers for another backend,
                numerics on another backend than ttnn-mock.
        """
        check_numerics(asked.backend, asked.numerics)
        if cases is None:
            cases = select(asked.suite, asked.expr, asked.backend, asked.part)
        jobs = [(case, asked.seed + offset + case.seed) for offset in range(asked.seeds) for case in cases]
        return cls(asked, jobs, workers.count(jobs, workers_asked, asked.backend))


def run_suite(selected: Selected, out_dir: str | Path | None = None, progress: Progress | None = None) -> SuiteRun:
    """Run and judge the cases of a suite; writes results.json, junit.xml, parity.md.

    Args:
        out_dir: folder for the reports, made if need be; None writes nothing.

    Raises:
        UserError: missing oracle, unusable ``out_dir``.
    """
    check_environment([case for case, _ in selected.jobs])
    if selected.workers == 1:
        return _run_here(selected, make_runner(selected.asked.backend, selected.asked.numerics), out_dir, progress)
    return _written(selected, out_dir, progress, lambda tell: workers.run(selected.jobs, selected.workers, tell))


def run_cases(
    cases: Sequence[Case],
    runner: Runner,
    asked: Asked = Asked(),
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> SuiteRun:
    """Run and judge the given cases one after the other by the given runner, as :func:`run_suite` does."""
    return _run_here(Selected.of(asked, cases), runner, out_dir, progress)


def _run_here(selected: Selected, runner: Runner, out_dir: str | Path | None, progress: Progress | None) -> SuiteRun:
    def run(tell: Tell) -> list[Record]:
        with runner:
            runner.plan(selected.jobs)
            return run_jobs(runner, selected.asked.backend, selected.jobs, tell)

    return _written(selected, out_dir, progress, run)


def _written(
    selected: Selected, out_dir: str | Path | None, progress: Progress | None, run: Callable[[Tell], list[Record]]
) -> SuiteRun:
    """Return what ``run`` gives, and what it was run with; write reports into ``out_dir`` unless it is None."""
    folder = _make_folder(out_dir)
    asked = selected.asked
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    question = (asked.suite, asked.expr, asked.backend, asked.seed)
    done = SuiteRun(*question, versions(), machine(), started, part=asked.part, **commit())
    begun = time.monotonic()
    done.records = run(_counted(progress, len(selected.jobs)))
    if asked.seeds > 1:
        done.records = [replace(record, id=f"{record.id}-seed{record.seed}") for record in done.records]
    done.wall_s = time.monotonic() - begun
    if folder is not None:
        results.write_all(done, folder)
    return done


def _counted(progress: Progress | None, total: int) -> Tell:
    """Tell ``progress`` the number of cases that are over, and of all."""
    over = 0

    def tell(case: Case, record: Record | None) -> None:
        nonlocal over
        over += record is not None
        if progress:
            progress(over + (record is None), total, case, record)

    return tell


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
