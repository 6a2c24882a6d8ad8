"""Every shadow rule against torch on a 2x4 mesh, and everything that must be refused."""

from __future__ import annotations

import pytest

from tests.tt_impl.cases import attention, collectives, crash, eltwise, layout, matmul, norm, refusals, two_links
from tests.tt_impl.worker import Outcome, run_cases

MESH = "t3k"
MESH_WITH_TWO_LINKS = "bh-qb-1x4"
FAMILIES = (attention, collectives, eltwise, layout, matmul, norm, refusals, two_links)
MODULES = {module.__name__.rpartition(".")[2]: module for module in FAMILIES}
_outcomes: dict[str, dict[str, Outcome]] = {}


def outcomes(family: str) -> dict[str, Outcome]:
    if family not in _outcomes:
        _outcomes[family] = run_cases(MODULES[family], MESH_WITH_TWO_LINKS if family == "two_links" else MESH)
    return _outcomes[family]


@pytest.mark.parametrize(("family", "case"), [(f, case) for f, module in MODULES.items() for case in module.CASES])
def test_case(family: str, case: str) -> None:
    error = outcomes(family)[case].error
    assert error is None, error


def test_every_rule_has_a_case() -> None:
    """A rule that no case calls is a rule nobody has compared with torch."""
    from tt_impl.mock.rules.registry import RULES
    from tt_impl.mock.shadow import SPECIAL

    called = {name for family in MODULES for outcome in outcomes(family).values() for name in outcome.calls}
    assert sorted((set(RULES) | set(SPECIAL)) - called) == []


def test_crash_is_one_failed_case() -> None:
    found = run_cases(crash, MESH)
    assert list(found) == list(crash.CASES)
    assert found["before"].error is None and found["after"].error is None
    assert "the worker ended with -11" in found["crash"].error
    assert "device 0" in found["fails"].error
