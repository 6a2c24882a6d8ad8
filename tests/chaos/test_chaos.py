"""Eighteen seeded disturbances on 4 ranks; ``nox -s chaos`` runs two hundred on 8 and 32."""

from __future__ import annotations

import dataclasses
import json

import pytest

from parity.cases.suites import suite_cases
from parity.kinds.base import Measured
from parity.run.runner import Runner
from parity.run.suite import run_cases
from refsim.base.errors import RankFailure
from tests.chaos.cases import ON_RANKS, SHARES, Disturbance, plan
from tests.chaos.run_case import Outcome, _check_report, run_case
from tests.chaos.workload import Files

CASES = [*plan(15, 0, ON_RANKS, sizes=(4,)), *plan(3, 1, ("full_disk", "closed_stdout", "ctrl_c"), sizes=(4,))]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_disturbance_is_reported_in_time_and_leaves_nothing(case, files, tmp_path):
    # other tests share the cores, so the five seconds of nox -s chaos would time them rather than the run
    outcome = run_case(case, files, tmp_path / "case", hang_bound_s=1.5, within_s=30.0)
    assert outcome.problems == [], outcome.message
    assert outcome.leaks == []


def test_every_kind_comes_and_the_same_seed_gives_the_same_plan():
    cases = plan(200, 7)
    assert len(cases) == 200
    assert {case.kind for case in cases} == set(SHARES)
    assert {case.ranks for case in cases} == {8, 32}
    assert cases == plan(200, 7) != plan(200, 8)


def test_the_next_case_of_a_suite_runs_and_the_report_holds_the_last_events(files, tmp_path):
    """Two cases of the gate on real ranks, the first of which loses one of them."""
    cases = [case for case in suite_cases("smoke", "cpu") if case.kind == "attention"][:2]
    workload = files.workloads[4][1].measure(tmp_path / "unused")

    class Killed(Runner):
        family = "cpu"

        def run(self, case, seed):
            killed = case is cases[0]
            workload.run("kill", 2, 30 if killed else 0, tmp_path / "note", 0, 60.0)
            return Measured(metrics={}, noise={})

    done = run_cases(cases, Killed(), out_dir=tmp_path / "out")
    first, second = json.loads((tmp_path / "out" / "results.json").read_text())["records"]
    assert first["verdict"] == "failed" and "rank 2 was killed by SIGKILL" in first["reason"]
    assert set(first["last_events"]) == {"0", "1", "2", "3"} and all(first["last_events"].values())
    assert second["reason"].endswith("was not measured") and not second["error"]  # it ran to its end
    assert len(done.records) == 2


KILLED = Disturbance(0, "kill", 4, 2, 0.5, 9, 0)
EVENTS = {rank: [(0.1, "idle")] for rank in range(4)}
GOOD = "rank 2 was killed by SIGKILL while it was waiting for recv of step 3 of all_gather (from rank 1)."


@pytest.mark.parametrize(
    ("message", "rank", "events", "problem"),
    [
        (GOOD, 2, EVENTS, None),
        (GOOD, 3, EVENTS, "rank 3 is named"),
        (GOOD.replace("was killed by SIGKILL", "failed"), 2, EVENTS, "was killed"),
        (GOOD.replace("step 3", "step 4"), 2, EVENTS, "step 3"),
        (GOOD.replace("(from rank 1)", ""), 2, EVENTS, "from rank 1"),
        (GOOD, 2, {rank: EVENTS[rank] for rank in range(3)}, "last events"),
        (GOOD + "\nand more", 2, EVENTS, "single sentence"),
    ],
)
def test_a_wrong_report_is_a_miss(message, rank, events, problem):
    outcome = Outcome(KILLED, where="waiting for recv of step 3 of all_gather (from rank 1)")
    _check_report(outcome, RankFailure(message, rank=rank, last_events=events))
    assert outcome.ok == (problem is None)
    assert problem is None or any(problem in said for said in outcome.problems)


def test_what_is_left_behind_is_a_miss(files, tmp_path, monkeypatch):
    """A run that leaves a file in its folder, and a rank whose killing is forgotten."""
    from refsim.runtime.ranks import pool

    case = dataclasses.replace(KILLED, kind="exception", workload=1)
    run_dir = pool.pool(4).server.run_dir
    (run_dir / "forgotten").write_text("x")
    try:
        outcome = run_case(case, files, tmp_path / "file")
    finally:
        (run_dir / "forgotten").unlink()
    assert any("forgotten" in leak for leak in outcome.leaks)

    real = pool.ForkServer.kill
    pending = []
    monkeypatch.setattr(pool.ForkServer, "kill", lambda self, number: pending.append((self, number)) or [9] * 4)
    outcome = run_case(case, files, tmp_path / "process")
    monkeypatch.undo()
    for server, number in pending:
        real(server, number)
    assert any(leak.startswith("process ") for leak in outcome.leaks)
