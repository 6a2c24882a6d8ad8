"""The device backend's faults: what counts as caught, and a few of them run (all: ``nox -s ttnn-faults``)."""

import importlib.util
from collections import Counter
from concurrent.futures import Future

import pytest

from parity.faults import records
from parity.faults.run import corpus, run
from parity.kinds import thresholds_for
from parity.kinds.base import Measured
from refsim.base.errors import RankFailure

HAS_TTNN = importlib.util.find_spec("ttnn") is not None
GOOD = {t.metric: 0 for t in thresholds_for("ttnn_block", "bf16")}
NAMED = {
    "ttnn-col-weight-on-the-wrong-axis",
    "ttnn-row-weight-cut-along-output",
    "ttnn-gather-on-the-wrong-axis",
    "ttnn-reduce-scatter-missing",
    "ttnn-qkv-order-kqv",
    "ttnn-head-padding-unmasked",
    "ttnn-logical-n-one-tile-more",
    "ttnn-joint-at-the-front",
    "ttnn-no-lse-merge",
    "ttnn-bias-before-the-reduction",
    "ttnn-cfg-groups-swapped",
    "ttnn-stale-buffer",
}


class FakeRunner:
    """Answers clean cases with ``clean`` and faults with ``faulty``: metrics, or an error."""

    def __init__(self, clean, faulty):
        self.answers = {"": clean}, faulty

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def start(self, case, seed, *, fault=""):
        future = Future()
        answer = self.answers[1] if fault else self.answers[0][""]
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result((answer, 0.5))
        return future

    def measure(self, case, seed, outcome):
        return Measured(outcome, {})


def verdicts(monkeypatch, name, clean, faulty):
    monkeypatch.setattr("parity.run.backends.make_runner", lambda backend: FakeRunner(clean, faulty))
    judged = run("ttnn-mock", [name])
    return [r.verdict for r in judged], judged


def test_there_are_enough_and_those_that_are_asked_for():
    faults = corpus("ttnn-mock")
    assert len(faults) >= 150 and set(faults) >= NAMED
    assert len({f.sentence for f in faults.values()}) == len(faults)
    assert all(f.mistake and f.family and f.sentence.endswith(".") for f in faults.values())
    assert len(Counter(f.family for f in faults.values())) >= 8


def test_caught_by_a_metric_the_furthest_first(monkeypatch):
    bad = GOOD | {"one_minus_pcc": 2e-3, "added_rel_rmse": 0.9}
    found, judged = verdicts(monkeypatch, "ttnn-bias-forgotten", GOOD, bad)
    assert found == ["passed", "caught"]
    assert [b.metric for b in judged[1].caught_by] == ["added_rel_rmse", "one_minus_pcc"]
    assert judged[1].mistake and judged[1].seconds == 0.5


def test_a_fault_that_changes_nothing_survives(monkeypatch):
    found, judged = verdicts(monkeypatch, "ttnn-bias-forgotten", GOOD, GOOD)
    assert found == ["passed", "survived"] and not records.is_good(judged)


def test_a_gate_that_fails_a_clean_case_is_a_false_alarm(monkeypatch):
    bad = GOOD | {"one_minus_pcc": 1.0}
    found, judged = verdicts(monkeypatch, "ttnn-bias-forgotten", bad, bad)
    assert found == ["false alarm", "caught"] and not records.is_good(judged)


def test_an_error_catches_only_a_fault_that_it_names(monkeypatch):
    named = RankFailure("ttnn failed in x: HazardError: buffer 0 of y is handed to z while w may still read it", rank=0)
    other = RankFailure("ttnn failed in x: TypeError: missing argument", rank=0)
    assert verdicts(monkeypatch, "ttnn-single-buffer", GOOD, named)[0] == ["passed", "caught"]
    assert verdicts(monkeypatch, "ttnn-single-buffer", GOOD, other)[0] == ["passed", "survived"]
    assert verdicts(monkeypatch, "ttnn-bias-forgotten", GOOD, named)[0] == ["passed", "survived"]


@pytest.mark.skipif(not HAS_TTNN, reason="ttnn is not installed: the device backend did not run")
def test_faults_in_the_real_program():
    ids = ["ttnn-bias-before-the-reduction", "ttnn-qkv-order-kqv", "ttnn-links-beyond-the-mesh"]
    judged = run("ttnn-mock", ids)
    assert [(r.kind, r.verdict) for r in judged] == [("clean", "passed")] + [("fault", "caught")] * 3
    assert judged[1].caught_by and judged[2].caught_by and "4 links" in judged[3].error


@pytest.mark.skipif(not HAS_TTNN, reason="ttnn is not installed: the device backend did not run")
def test_every_fault_finds_its_place():
    for known in corpus("ttnn-mock").values():
        with known.inject():
            pass
