"""Tests that ask for meshes, by shape, by number, or for all devices there are."""

from __future__ import annotations

import pytest
import torch
import ttnn


@pytest.mark.parametrize("device_params", [{"fabric_config": ttnn.FabricConfig.FABRIC_1D}], indirect=True)
@pytest.mark.parametrize("mesh_device", [(2, 4), (1, 8), 2, (4, 8)], indirect=True, ids=str)
def test_gather(mesh_device):
    devices, axis = mesh_device.get_num_devices(), 1
    value = torch.arange(devices * 32 * 32).reshape(1, 1, devices * 32, 32).float()
    cut = ttnn.from_torch(
        value,
        dtype=ttnn.float32,
        layout=ttnn.TILE_LAYOUT,
        device=mesh_device,
        mesh_mapper=ttnn.ShardTensorToMesh(mesh_device, dim=2),
    )
    columns = mesh_device.shape[1]
    whole = ttnn.all_gather(cut, dim=2, cluster_axis=axis, topology=ttnn.Topology.Linear)
    parts = [ttnn.to_torch(part) for part in ttnn.get_device_tensors(whole)]
    for device, part in enumerate(parts):
        row = device // columns
        assert torch.equal(part, value[:, :, row * columns * 32 : (row + 1) * columns * 32])


def test_all_devices(mesh_device):
    assert mesh_device.get_num_devices() == ttnn.get_num_devices()


def test_one_device(device):
    assert device.get_num_devices() == 1


@pytest.mark.skipif(ttnn.get_num_devices() < 8, reason="asked while tests are collected")
def test_collected_with_eight():
    pass
