"""Tests that open a device each, in a module one of whose fixtures may hold tensors of another test's."""

from __future__ import annotations

import pytest
import torch
import ttnn

from tt_impl.mock.calls.shadow import Shadow
from tt_impl.trace.intercept import installed


@pytest.fixture(scope="module")
def helper():
    return lambda device: ttnn.from_torch(torch.ones(32, 32), layout=ttnn.TILE_LAYOUT, device=device)


@pytest.mark.parametrize("number", range(3))
def test_values_of_closed_devices(number, helper, device):
    tensor = ttnn.exp(helper(device))
    assert len(installed(Shadow).store.values) == 2
    ttnn.deallocate(tensor)
