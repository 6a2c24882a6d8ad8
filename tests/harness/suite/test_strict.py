"""Programs whose findings fail them in strict mode, and right ones that no finding is made of."""

from __future__ import annotations

import pytest
import torch
import ttnn

FABRIC = pytest.mark.parametrize("device_params", [{"fabric_config": ttnn.FabricConfig.FABRIC_1D}], indirect=True)
MESH = pytest.mark.parametrize("mesh_device", [(2, 4)], indirect=True, ids=str)


def ring(mesh_device):
    x = ttnn.ones((1, 1, 32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh_device)
    whole = ttnn.all_gather(x, dim=3, cluster_axis=1, topology=ttnn.Topology.Ring)
    assert ttnn.to_torch(ttnn.get_device_tensors(whole)[0]).sum() == 32 * 128


@FABRIC
@MESH
def test_ring(mesh_device):
    ring(mesh_device)


@FABRIC
@MESH
@pytest.mark.ttnn_mock_allow("ring-without-link", "unused-result")
def test_allowed_ring(mesh_device):
    ring(mesh_device)


def put(device, values):
    return ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)


def test_refused_and_caught(device):
    x = put(device, torch.ones(32, 32))
    try:
        y = ttnn.matmul(x, put(device, torch.ones(64, 32)))
    except RuntimeError:
        y = x  # as a port that falls back to torch does
    assert ttnn.to_torch(y).sum() == 1024


def test_refused_as_expected(device):
    x = put(device, torch.ones(32, 32))
    with pytest.raises(RuntimeError):
        ttnn.matmul(x, put(device, torch.ones(64, 32)))
    assert ttnn.to_torch(x).sum() == 1024


def test_freed_and_caught(device):
    x = put(device, torch.ones(32, 32))
    view = ttnn.reshape(x, (1, 32, 32))
    ttnn.deallocate(x)
    try:
        ttnn.add(view, view)
    except RuntimeError:
        pass


def test_rows_of_minus_infinity(device):
    x = torch.zeros(32, 32)
    x[3] = -torch.inf
    y = ttnn.softmax(put(device, x), dim=-1)
    assert ttnn.to_torch(y)[0].isfinite().all()


def test_masked_rows(device):
    x = torch.zeros(32, 32)
    x[3, 5:] = -torch.inf
    y = ttnn.softmax(put(device, x), dim=-1)
    assert ttnn.to_torch(y).isfinite().all()


def test_infinity_is_a_note(device):
    y = ttnn.reciprocal(put(device, torch.zeros(32, 32)))
    assert ttnn.to_torch(y).isinf().all()


def test_what_is_not_finite_is_told_where_it_begins(device):
    x = torch.ones(32, 32)
    x[0, 0] = torch.nan
    y = ttnn.add(put(device, x), put(device, x))
    assert ttnn.to_torch(y)[1].sum() == 64
