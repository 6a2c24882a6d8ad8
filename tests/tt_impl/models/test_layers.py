"""Layers on two devices against torch, on inputs that show their constants, and the resources of their collectives."""

from __future__ import annotations

import pytest

from tests.tt_impl.worker import Case, Outcome, cases_of, run_cases
from tt_impl.run.launch import Worker

LAYERS = cases_of("constants", "turns")


@pytest.fixture(scope="module")
def outcomes(worker: Worker) -> dict[Case, Outcome]:
    return run_cases(worker, LAYERS, "n300").outcomes


@pytest.mark.parametrize("case", LAYERS, ids="-".join)
def test_layer(case: Case, outcomes: dict[Case, Outcome]) -> None:
    error = outcomes[case].error
    assert error is None, error
