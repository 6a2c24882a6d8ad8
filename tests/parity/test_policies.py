"""The model-check of buffer policies: three readings that agree, and figures in the docs that it really gave."""

from pathlib import Path

import pytest

from parity.policies import POLICIES, Clock, critical_lag, explore, program, prove, seeded_stalls, simulate
from parity.policy_report import MARKS, explored_row, lag_row, replayed, sampled_row
from refsim.errors import UserError

DOC = Path(__file__).resolve().parents[2] / "docs" / "buffers.md"
SAFE = {"upstream": False, "barrier": True, "alternate": True, "slots": False, "credit": True}


@pytest.mark.parametrize("policy", POLICIES)
def test_proof_search_and_samples_agree(policy):
    for ranks in (2, 3):
        programs = program(policy, ranks, 3)
        sampled = any(simulate(programs, seeded_stalls(programs, seed, 12)).wrong for seed in range(40))
        readings = [not prove(programs), not explore(program(policy, ranks, 3, "K")).wrong, not sampled]
        assert readings == [SAFE[policy]] * 3


def test_the_search_knows_a_deadlock():
    """Both wait for an arrival before they send."""
    programs = [sorted(ops, key=lambda op: (op.layer, op.kind != "arrived")) for ops in program("credit", 2, 3, "K")]
    assert explore(programs).wrong == "all ranks wait for each other"


def test_the_search_is_bounded():
    with pytest.raises(UserError, match="more than 100 states"):
        explore(program("credit", 3), limit=100)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rest", [0.0, 3.0])
def test_upstream_goes_wrong_from_a_lag_on_that_grows_with_ring_and_layer(ranks, rest):
    lag = critical_lag("upstream", ranks, Clock(rest=rest))
    assert lag == pytest.approx(ranks - 2 + rest + 0.5, abs=0.01)
    assert critical_lag("alternate", ranks, Clock(rest=rest)) is None


def test_a_seed_is_replayed_and_says_what_goes_wrong():
    lines, wrong = replayed("upstream", 4, 0)
    assert wrong
    assert lines == replayed("upstream", 4, 0)[0]
    assert lines[-1].startswith("WRONG: rank ")
    assert not replayed("credit", 4, 0)[1]


@pytest.mark.parametrize(("policy", "ranks"), [("unheard", 4), ("upstream", 1)])
def test_what_does_not_exist_is_refused(policy, ranks):
    with pytest.raises(UserError):
        program(policy, ranks)


def test_figures_in_the_docs_are_those_of_the_command():
    text = DOC.read_text(encoding="utf-8")
    generated = text[text.index(MARKS[0]) : text.index(MARKS[1])].splitlines()
    rows = [sampled_row(policy, 2) for policy in POLICIES] + [explored_row(policy, 2, "KV") for policy in POLICIES]
    for row in [*rows, lag_row("upstream", 2), lag_row("slots", 4)]:
        assert row in generated
