"""Every shadow rule against torch on a 2x4 mesh, and everything that must be refused."""

from __future__ import annotations

import os

import pytest

from benchmarks import op_coverage
from tests.tt_impl.cases.mesh import crash
from tests.tt_impl.worker import Case, Outcome, cases_of, modules_in, run_cases
from tt_impl.run.launch import Worker

ON_T3K = cases_of(*modules_in("properties", "shadow", "values"))
ON_TWO_LINKS = cases_of("two_links", "decoding", "encoders", "fused", "on_blackhole", "prop_two_links")
ON_N300 = cases_of("submeshes", "sockets")
ON_QUIETBOX = cases_of("halves")
ON_RING = cases_of("prop_rings", "rings")
ON_SQUARE = cases_of("prop_square")


MESHES = {
    **dict.fromkeys(ON_T3K, "t3k"),
    **dict.fromkeys(ON_TWO_LINKS, "bh-qb-1x4"),
    **dict.fromkeys(ON_N300, "n300"),
    **dict.fromkeys(ON_QUIETBOX, "quietbox"),
    **dict.fromkeys(ON_RING, "t3k-1x8"),
    **dict.fromkeys(ON_SQUARE, "bh-qb"),
}


class Outcomes:
    """Outcomes of cases; the first one that is asked for runs all cases of its module."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._known: dict[Case, Outcome] = {}

    def __getitem__(self, case: Case) -> Outcome:
        if case not in self._known:
            self._known |= run_cases(self._worker, cases_of(case[0]), MESHES[case]).outcomes
        return self._known[case]

    def called(self) -> set[str]:
        """Operations that the cases have called, all of them together."""
        return {name for case in MESHES for name in self[case].calls}

    def drawn(self) -> set[str]:
        """Operations that properties have called, all of them together."""
        return {name for case in MESHES for name in self[case].drawn}


@pytest.fixture(scope="module")
def outcomes(worker: Worker) -> Outcomes:
    return Outcomes(worker)


@pytest.mark.parametrize("case", MESHES, ids="-".join)
def test_case(case: Case, outcomes: Outcomes) -> None:
    error = outcomes[case].error
    assert error is None, error


def test_the_ttnn_that_was_asked_for() -> None:
    """Session ``ttnn-previous`` runs this with an older ttnn; the worker imports it from where this process would."""
    from tt_impl.run.installed import ttnn_package

    version = os.environ.get("REFSIM_TTNN_VERSION")
    if version is None:
        pytest.skip("no version was asked for in REFSIM_TTNN_VERSION")
    assert (ttnn_package().parent / f"ttnn-{version}.dist-info").is_dir()


IN_A_MODE_OF_ITS_OWN = {"ttnn.experimental_to_single_device"}
"""Called where devices give every core an allocator: tests/harness/suite/test_hybrid.py compares its values."""


def test_every_rule_has_a_case(outcomes: Outcomes) -> None:
    """A rule that no case calls is a rule nobody has compared with torch."""
    from tt_impl.mock.calls.shadow import SPECIAL
    from tt_impl.mock.rules.registry import RULES

    assert sorted((set(RULES) | set(SPECIAL)) - outcomes.called() - IN_A_MODE_OF_ITS_OWN) == []


def test_every_rule_with_a_property_has_one(outcomes: Outcomes) -> None:
    """``docs/ttnn_ops.md`` says of no operation that a property covers it which none of them calls."""
    page = op_coverage.covered(op_coverage.TABLE.read_text(encoding="utf-8"))
    assert page and sorted(page - outcomes.drawn()) == []


def test_crash_is_one_failed_case(worker: Worker) -> None:
    found = {name: outcome.error for (_, name), outcome in run_cases(worker, cases_of("crash"), "t3k").outcomes.items()}
    assert list(found) == list(crash.CASES)
    assert found["before"] is None and found["after"] is None
    assert found["crash"].startswith("the ttnn process was killed by SIGSEGV in ")
    assert "device 0" in found["fails"]
