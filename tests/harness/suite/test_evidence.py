"""What the mock knows of an operation: a rule, a golden function, or nothing.

The operations are the suite's own, so that no rule written later changes what its tests meet.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import ttnn
from test_values import on

from tt_impl.mock.rules.registry import per_device
from tt_impl.trace.intercept import uncaught


@ttnn.register_python_operation(name="ttnn.suite_unknown")
def unknown(tensor):
    with uncaught():
        return ttnn.clone(tensor)


@ttnn.register_python_operation(name="ttnn.suite_golden", golden_function=lambda tensor: tensor)
def golden(tensor):
    with uncaught():
        return ttnn.clone(tensor)


@ttnn.register_python_operation(name="ttnn.suite_scaled")
def scaled(tensor, *, factor, mode="exact"):
    with uncaught():
        return ttnn.clone(tensor)


@per_device("suite_scaled")
def rule(tensor, *, factor):
    return tensor * factor


def test_missing_rule(device):
    unknown(on(device, torch.ones(32, 32)))


def test_golden_function(device):
    assert ttnn.to_torch(golden(on(device, torch.ones(32, 32)))).sum() == 1024


def test_rule(device):
    assert ttnn.to_torch(scaled(on(device, torch.ones(32, 32)), factor=2)).sum() == 2048


def test_refused_option(device):
    scaled(on(device, torch.ones(32, 32)), factor=2, mode="quick")


def test_unseen_value(device):
    with uncaught():
        made = on(device, torch.ones(32, 32))
    ttnn.add(made, 1.0)


def test_caught(device):
    with contextlib.suppress(Exception):
        unknown(on(device, torch.ones(32, 32)))


def test_caught_and_skipped(device):
    try:
        unknown(on(device, torch.ones(32, 32)))
    except Exception:
        pytest.skip("does not fit")


@pytest.mark.xfail
def test_caught_as_expected(device):
    unknown(on(device, torch.ones(32, 32)))


@pytest.fixture
def cleared(device):
    yield device
    with contextlib.suppress(Exception):
        unknown(on(device, torch.ones(32, 32)))


def test_caught_at_the_end(cleared):
    ttnn.add(on(cleared, torch.ones(32, 32)), 1.0)
