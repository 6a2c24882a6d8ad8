"""Generation on a ttnn backend: what is judged when a choice is a toss-up, and what counts as wrong."""

from __future__ import annotations

from parity.kinds.cpu.generation import Expected, differences, wrong_rows
from parity.kinds.ttnn.generation import closest_choice


def expected(**changes: object) -> Expected:
    """Three steps: two proposals accepted, none, one; six tokens wanted."""
    values = {
        "tokens": [1, 2, 3, 4, 5, 6],
        "proposed": [[2, 3, 9], [9, 9, 9], [6, 9, 9]],
        "accepted": [3, 1, 2],
        "margins": [1.0, 1.0, 1.0],
        "closest": 0.0,
        "first_margin": 1.0,
        "proposal_margins": [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]],
    }
    return Expected(**(values | changes))


def test_proposals_behind_the_end_of_a_step_decide_nothing():
    assert closest_choice(expected()) == 1.0


def test_every_choice_that_ends_a_step_counts():
    assert closest_choice(expected(first_margin=0.05)) == 0.05
    assert closest_choice(expected(margins=[1.0, 0.05, 1.0])) == 0.05
    rejected = [[1.0, 1.0, 0.05], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert closest_choice(expected(proposal_margins=rejected)) == 0.05


def test_rows_of_caches():
    steps = [{"draft_rows": 4, "accepted": 3, "target_rows": 7}, {"draft_rows": 7, "accepted": 1, "target_rows": 8}]
    assert wrong_rows(4, steps) == 0
    assert wrong_rows(4, [steps[0], steps[1] | {"draft_rows": 23}]) == 1
    assert wrong_rows(4, [steps[0] | {"target_rows": 20}, steps[1]]) == 1


def test_tokens_too_few_or_other_are_differences():
    assert differences([1, 2, 3], [1, 2, 3]) == 0
    assert differences([1, 2], [1, 2, 3]) == 1
    assert differences([1, 3, 2], [1, 2, 3]) == 2
