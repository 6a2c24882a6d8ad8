"""The device wing's faults: what counts as caught, and a few of them run (all: ``nox -s ttnn``)."""

import importlib.util
from collections import Counter
from concurrent.futures import Future

import pytest

from parity.faults import wing
from parity.runners import Measured
from parity.thresholds import thresholds_for
from refsim.errors import RankFailure

HAS_TTNN = importlib.util.find_spec("ttnn") is not None
GOOD = {t.metric: 0 for t in thresholds_for("wing_block", "bf16")}
NAMED = {
    "wing-col-weight-on-the-wrong-axis",
    "wing-row-weight-cut-along-output",
    "wing-gather-on-the-wrong-axis",
    "wing-reduce-scatter-missing",
    "wing-qkv-order-kqv",
    "wing-head-padding-unmasked",
    "wing-logical-n-one-tile-more",
    "wing-joint-at-the-front",
    "wing-no-lse-merge",
    "wing-bias-before-the-reduction",
    "wing-cfg-groups-swapped",
    "wing-stale-buffer",
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
    monkeypatch.setattr("parity.gate.make_runner", lambda backend: FakeRunner(clean, faulty))
    records = wing.run([name])
    return [r["verdict"] for r in records], records


def test_there_are_enough_and_those_that_are_asked_for():
    faults = wing.wing_faults()
    assert len(faults) >= 20 and set(faults) >= NAMED
    assert len({f.sentence for f in faults.values()}) == len(faults)
    assert all(f.stands_for and f.family and f.sentence.endswith(".") for f in faults.values())
    assert len(Counter(f.family for f in faults.values())) >= 8


def test_caught_by_a_metric_the_furthest_first(monkeypatch):
    bad = GOOD | {"one_minus_pcc": 2e-3, "added_rel_rmse": 0.9}
    found, records = verdicts(monkeypatch, "wing-bias-forgotten", GOOD, bad)
    assert found == ["passed", "caught"]
    assert [b["metric"] for b in records[1]["caught_by"]] == ["added_rel_rmse", "one_minus_pcc"]
    assert records[1]["stands_for"] and records[1]["seconds"] == 0.5


def test_a_fault_that_changes_nothing_survives(monkeypatch):
    found, records = verdicts(monkeypatch, "wing-bias-forgotten", GOOD, GOOD)
    assert found == ["passed", "survived"] and not wing.is_good(records)


def test_a_gate_that_fails_a_clean_case_is_a_false_alarm(monkeypatch):
    bad = GOOD | {"one_minus_pcc": 1.0}
    found, records = verdicts(monkeypatch, "wing-bias-forgotten", bad, bad)
    assert found == ["false alarm", "caught"] and not wing.is_good(records)


def test_an_error_catches_only_a_fault_that_it_names(monkeypatch):
    named = RankFailure("ttnn failed in x: HazardError: buffer 0 of y is handed to z while w may still read it", rank=0)
    other = RankFailure("ttnn failed in x: TypeError: missing argument", rank=0)
    assert verdicts(monkeypatch, "wing-single-buffer", GOOD, named)[0] == ["passed", "caught"]
    assert verdicts(monkeypatch, "wing-single-buffer", GOOD, other)[0] == ["passed", "survived"]
    assert verdicts(monkeypatch, "wing-bias-forgotten", GOOD, named)[0] == ["passed", "survived"]


@pytest.mark.skipif(not HAS_TTNN, reason="ttnn is not installed: the device wing did not run")
def test_faults_in_the_real_wing():
    ids = ["wing-bias-before-the-reduction", "wing-qkv-order-kqv", "wing-links-beyond-the-mesh"]
    records = wing.run(ids)
    assert [(r["kind"], r["verdict"]) for r in records] == [("clean", "passed")] + [("fault", "caught")] * 3
    assert records[1]["caught_by"] and records[2]["caught_by"] and "4 links" in records[3]["error"]
