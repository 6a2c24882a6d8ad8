"""Several cases at a time give the records that one after the other gives, and a worker that dies costs one case."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.cases import Case
from parity.measure.records import Record
from parity.run import workers
from parity.run.case import Job
from parity.run.suite import Asked, Selected, run_suite
from refsim.base.errors import RefsimError, UserError
from refsim.files.keys import as_json
from tests import warm

PROMPT = "(t5_tiny_quiet-n300 and heads and not umt5)"
FEW = f"attention-n300-sp2-ring-fp32-normal or attention-n300-tp2 or attention-n300-sp2-ulysses or {PROMPT}"
LIGHT = "attention-n300-sp2-ring-fp32-normal or attention-n300-tp2-ring-fp32-normal"
"""Two groups for which no library of models is imported."""


def jobs(expr: str, suite: str = "smoke") -> list[Job]:
    return Selected.of(Asked(suite, expr)).jobs


@pytest.fixture
def warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks of a process that has imported what they need."""
    monkeypatch.setattr(workers.processes, "start", warm.start)


def quiet(case: Case, record: Record | None) -> None:
    pass


def test_cases_of_one_checkpoint_share_a_worker_and_large_ones_come_first() -> None:
    asked = jobs("sd35_tiny-n300 or attention-n300 or sd35_medium-t3k")
    found = workers.groups(asked)
    assert sorted(index for group in found for index in group) == list(range(len(asked)))
    models = [{asked[index][0].model for index in group} for group in found]
    assert models[0] == {"sd35_medium"}
    assert models.count({"sd35_tiny"}) == 1
    assert models.count({"attention"}) > 1


def test_few_cases_that_share_an_answer_share_a_worker() -> None:
    asked = jobs("attention")
    shared = [{asked[index][0].shape for index in group} for group in workers.groups(asked)]
    assert all(len(shapes) == 1 for shapes in shared)
    sizes = [len(group) for group in workers.groups(asked)]
    assert max(sizes) == workers.TOGETHER
    assert len({case.shape for case, _ in asked}) < len(sizes) < sum(sizes) / 2


def test_there_are_no_more_workers_than_groups_or_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 3)
    assert workers.count(jobs("sd35_tiny-n300"), None, "cpu") == 1
    assert workers.count(jobs("attention"), None, "cpu") == 3
    assert workers.count(jobs("attention"), 7, "cpu") == 7
    assert workers.count(jobs("attention"), None, "ttnn-mock") == 1
    with pytest.raises(UserError, match="jobs is for backend cpu"):
        workers.count(jobs("attention"), 2, "ttnn-mock")


def test_a_worker_is_given_the_first_group_that_memory_has_room_for() -> None:
    asked = jobs("attention-n300-sp2-ring or sd35_medium-t3k or sd35_large-t3k")

    def needs(room: float) -> set[float]:
        return {asked[index][0].needs_gb for index in workers._next(asked, workers.deque(workers.groups(asked)), room)}

    assert [needs(room) for room in (math.inf, 8.0, 7.9, 5.9, 0.0, -2.0)] == [{8}, {8}, {6}, {0}, {0}, {0}]


@pytest.mark.usefixtures("warm_start")
@pytest.mark.parametrize(("memory", "at_once"), [(None, 1), (13.9, 1), (14.0, 2)])
def test_two_groups_that_need_much_run_at_once_where_memory_holds_both(
    monkeypatch: pytest.MonkeyPatch, memory: float | None, at_once: int
) -> None:
    asked = [(replace(case, needs_gb=8.0 if "sp2" in case.id else 6.0), seed) for case, seed in jobs(LIGHT)]
    monkeypatch.setattr(workers, "groups", lambda jobs: [[index] for index in range(len(jobs))])
    monkeypatch.setattr(workers, "available_bytes", lambda: memory and memory * 2**30)
    given, give = list[int](), workers._Worker.give
    before_the_first_is_over = 0

    def count_given(worker: workers._Worker, asked: list[Job], group: list[int]) -> None:
        given.extend(group)
        give(worker, asked, group)

    def progress(case: Case, record: Record | None) -> None:
        nonlocal before_the_first_is_over
        before_the_first_is_over = before_the_first_is_over or (len(given) if record else 0)

    monkeypatch.setattr(workers._Worker, "give", count_given)
    assert {record.verdict for record in workers.run(asked, 2, progress)} == {"passed"}
    assert before_the_first_is_over == at_once
    assert len(given) == 2


@pytest.mark.usefixtures("warm_start")
def test_two_workers_give_the_records_of_one_process(tmp_path: Path) -> None:
    told: list[tuple[int, int, bool]] = []

    def progress(index: int, total: int, case: Case, record: Record | None) -> None:
        told.append((index, total, record is not None))

    asked = Asked("smoke", FEW, seeds=2)
    alone = run_suite(Selected.of(asked))
    together = run_suite(Selected.of(asked, workers_asked=2), tmp_path, progress)

    def compared(record: Record) -> dict[str, Any]:
        seconds = {"sim_s": 0, "oracle_s": 0, "wall_s": 0, "metrics": sorted(record.metrics), "noise": 0}
        return as_json(record) | seconds

    assert [compared(r) for r in together.records] == [compared(r) for r in alone.records]
    assert together.counts == {"passed": len(alone.records), "failed": 0, "skipped": 0}
    over = [index for index, total, is_over in told if is_over and total == len(alone.records)]
    assert over == list(range(1, len(alone.records) + 1))
    assert (tmp_path / "results.json").is_file()


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="only Linux says how a process is scheduled")
def test_workers_are_not_interrupted_by_whom_they_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    pids, start = list[int](), workers.processes.start

    def started(*words: str, **more: Any) -> subprocess.Popen[bytes]:
        pids.append((process := start(*words, **more)).pid)
        return process

    found = set[int]()
    monkeypatch.setattr(workers.processes, "start", started)
    workers.run(jobs(LIGHT), 2, lambda case, record: found.update(map(os.sched_getscheduler, pids)))
    assert os.SCHED_BATCH in found  # once they have begun


@pytest.mark.usefixtures("warm_start")
def test_a_worker_that_dies_costs_the_case_it_was_at_and_no_other() -> None:
    asked = jobs(f"{PROMPT} or attention-n300-sp2-ring-fp32-normal")
    victim = next(case for case, _ in asked if case.model == "t5_tiny_quiet")
    assert sum(case.model == "t5_tiny_quiet" for case, _ in asked) > 1  # another one waits behind it

    def kill(case: Case, record: Record | None) -> None:
        if case.id == victim.id and record is None:
            (worker,) = (one for one in made if one.group and asked[one.group[0]][0].id == case.id)
            os.kill(worker._process.pid, signal.SIGKILL)

    made: list[workers._Worker] = []
    with pytest.MonkeyPatch.context() as patch:
        enter = workers._Worker.__enter__
        patch.setattr(workers._Worker, "__enter__", lambda worker: made.append(worker) or enter(worker))
        records = workers.run(asked, 2, kill)
    verdicts = {record.id: record.verdict for record in records}
    assert verdicts.pop(victim.id) == "failed"
    assert set(verdicts.values()) == {"passed"}
    failed = next(record for record in records if record.id == victim.id)
    assert failed.reason == "the process that ran this case was killed by SIGKILL."


@pytest.mark.usefixtures("warm_start")
def test_a_worker_that_dies_at_the_last_case_of_a_group_goes_on_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group needs much memory, so that nobody else takes it."""
    asked = jobs(LIGHT)
    monkeypatch.setattr(workers, "_needs_gb", lambda jobs, group: math.inf if group else 0.0)
    killed = []

    def kill(case: Case, record: Record | None) -> None:
        if record is None and not killed:
            killed.append(case.id)
            for pid in made:
                os.kill(pid, signal.SIGKILL)

    made: list[int] = []
    enter = workers._Worker.__enter__

    def keep(worker: workers._Worker) -> workers._Worker:
        made.extend([worker._process.pid] * (worker.number == 0))
        return enter(worker)

    monkeypatch.setattr(workers._Worker, "__enter__", keep)
    records = workers.run(asked, 2, kill)
    assert [record.verdict for record in records] == ["failed", "passed"] and killed == [records[0].id]


def test_a_worker_that_never_begins_ends_the_run_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], start_new_session=True)

    monkeypatch.setattr(workers.processes, "start", start)
    with pytest.raises(RefsimError, match="exited with code 3 before its first; run with"):
        workers.run(jobs("attention-n300"), 2, quiet)
