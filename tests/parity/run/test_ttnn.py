"""Cases of a ttnn backend are started ahead of their turn: never more than there are workers, never one that is
skipped, and the answer that is judged is the case's own."""

from concurrent.futures import Future

import pytest

from parity.cases.suites import suite_cases
from parity.kinds.base import Measured
from parity.run import ttnn

CASES = [(case, 0) for case in suite_cases("smoke", "ttnn-mock")[:5]]


class Recording(ttnn.TTNNRunner):
    def __init__(self):
        super().__init__("ttnn-mock")
        self.started, self.futures = [], {}

    def start(self, case, seed, *, fault=""):
        self.started.append(case.id)
        self.futures[case.id] = future = Future()
        if case == CASES[0][0] or case == CASES[2][0]:
            future.set_result((case.id, 1.5))
        return future

    def reference(self, case, seed):
        self._answers[case.id, seed] = None

    def measure(self, case, seed, outcome):
        return Measured({"ran": outcome}, {})


@pytest.fixture
def enough(monkeypatch):
    monkeypatch.setattr(ttnn, "missing_memory", lambda case: "")


def test_the_next_ones_are_under_way_and_no_more(enough):
    runner = Recording()
    runner.plan(CASES)
    measured = runner.run(*CASES[0])
    assert measured.metrics == {"ran": CASES[0][0].id} and measured.sim_s == 1.5
    assert runner.started == [case.id for case, _ in CASES[: 1 + ttnn.WORKERS]]
    assert not runner._answers


def test_a_skipped_case_does_not_hold_its_place(enough):
    runner = Recording()
    runner.plan(CASES)
    runner.run(*CASES[0])
    assert runner.run(*CASES[2]).metrics == {"ran": CASES[2][0].id}  # the gate has skipped the second
    assert runner.futures[CASES[1][0].id].cancelled()
    assert runner.started == [case.id for case, _ in CASES]


def test_no_case_too_big_for_the_machine_is_started_early(monkeypatch):
    monkeypatch.setattr(ttnn, "missing_memory", lambda case: "needs 99 GiB")
    runner = Recording()
    runner.plan(CASES)
    runner.run(*CASES[0])
    assert runner.started == [CASES[0][0].id]


def test_without_a_plan():
    runner = Recording()
    runner.run(*CASES[2])
    assert runner.started == [CASES[2][0].id]
