"""Every shadow rule against torch on a 2x4 mesh, and everything that must be refused."""

from __future__ import annotations

import pytest

from tests.tt_impl.cases import crash
from tests.tt_impl.worker import Case, Outcome, cases_of, run_cases
from tt_impl.launch import Worker

ON_T3K = cases_of(
    "attention",
    "cache",
    "collectives",
    "conv",
    "eltwise",
    "events",
    "host",
    "integers",
    "random_ops",
    "golden",
    "layout",
    "matmul",
    "norm",
    "pool",
    "prop_conv",
    "prop_backward",
    "prop_binary",
    "prop_eltwise",
    "prop_matmul",
    "prop_norm",
    "refusals",
    "rope",
    "sharing",
    "usp",
    "views",
)
ON_TWO_LINKS = cases_of("two_links", "decoding", "encoders", "fused")
ON_N300 = cases_of("submeshes")


@pytest.fixture(scope="module")
def outcomes(worker: Worker) -> dict[Case, Outcome]:
    parts = (ON_T3K, "t3k"), (ON_TWO_LINKS, "bh-qb-1x4"), (ON_N300, "n300")
    return {case: outcome for part in parts for case, outcome in run_cases(worker, *part).outcomes.items()}


@pytest.mark.parametrize("case", [*ON_T3K, *ON_TWO_LINKS, *ON_N300], ids="-".join)
def test_case(case: Case, outcomes: dict[Case, Outcome]) -> None:
    error = outcomes[case].error
    assert error is None, error


def test_every_rule_has_a_case(outcomes: dict[Case, Outcome]) -> None:
    """A rule that no case calls is a rule nobody has compared with torch."""
    from tt_impl.mock.rules.registry import RULES
    from tt_impl.mock.shadow import SPECIAL

    called = {name for outcome in outcomes.values() for name in outcome.calls}
    assert sorted((set(RULES) | set(SPECIAL)) - called) == []


def test_crash_is_one_failed_case(worker: Worker) -> None:
    found = {name: outcome.error for (_, name), outcome in run_cases(worker, cases_of("crash"), "t3k").outcomes.items()}
    assert list(found) == list(crash.CASES)
    assert found["before"] is None and found["after"] is None
    assert found["crash"].startswith("the ttnn process was killed by SIGSEGV in ")
    assert "device 0" in found["fails"]
