"""A session on fixtures that the suite does not bring, and tests whose outcome depends on the options of the run."""

from __future__ import annotations

import json
import struct

import pytest
import torch
import ttnn

CALLS = []
"""What opens, closes and wires devices, in order, with its keywords."""


def noted(name):
    original = getattr(ttnn, name)

    def call(*arguments, **options):
        shown = {key: list(value) if key == "mesh_shape" else value for key, value in options.items()}
        CALLS.append((name, *(a for a in arguments if isinstance(a, ttnn.FabricConfig)), shown))
        return original(*arguments, **options)

    setattr(ttnn, name, call)


for _name in ("open_device", "close_device", "open_mesh_device", "close_mesh_device", "set_fabric_config"):
    noted(_name)
LINE = ttnn.FabricConfig.FABRIC_1D


def put(device, value):
    return ttnn.from_torch(value, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)


@pytest.mark.parametrize("device_params", [{"l1_small_size": 8192}], indirect=True)
def test_device(device, device_params):
    assert device.get_num_devices() == 1 and device_params == {"l1_small_size": 8192}


@pytest.mark.parametrize("device_params", [{"fabric_config": LINE, "l1_small_size": 4096}], indirect=True)
@pytest.mark.parametrize("mesh_device", [2], indirect=True)
def test_submeshes(mesh_device):
    assert tuple(mesh_device.shape) == (1, 2)
    mesh_device.create_submeshes(ttnn.MeshShape(1, 1))


@pytest.mark.parametrize("mesh_device", [[2, 1]], indirect=True)
def test_column(mesh_device):
    assert tuple(mesh_device.shape) == (2, 1)


@pytest.mark.parametrize("mesh_device", [(2, 2)], indirect=True)
def test_too_many(mesh_device):
    raise AssertionError


def test_all(mesh_device):
    assert mesh_device.get_num_devices() == ttnn.get_num_devices() == 2


def test_what_was_called():
    small = {"l1_small_size": 4096}
    assert CALLS == [
        ("open_device", {"device_id": 0, "l1_small_size": 8192}), ("close_device", {}),
        ("set_fabric_config", LINE, {}), ("open_mesh_device", {"mesh_shape": [1, 2]} | small),
        *[("close_mesh_device", {})] * 3, ("set_fabric_config", ttnn.FabricConfig.DISABLED, {}),
        ("open_mesh_device", {"mesh_shape": [2, 1]}), ("close_mesh_device", {}),
        ("open_mesh_device", {"mesh_shape": [1, 2]}), ("close_mesh_device", {}),
    ]  # fmt: skip


@pytest.mark.xfail(strict=True)
def test_passes_though_it_should_not(device):
    ttnn.add(put(device, torch.ones(32, 32)), 1.0)


@pytest.mark.parametrize("device_params", [{"trace_region_size": 1 << 30}], indirect=True)
def test_too_large(device):
    ttnn.empty((1, 1, 1 << 17, 1 << 17), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)


def test_value(device):
    assert ttnn.to_torch(ttnn.add(put(device, torch.ones(32, 32)), 1.0)).sum() == 2048


def test_random_weights(tmp_path):
    from safetensors.torch import load_file

    from tt_impl.harness.weights import RandomWeights

    header = json.dumps({"a": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    found = load_file(tmp_path / "x.safetensors")["a"]
    assert torch.equal(found + 0, RandomWeights(3, True).tensor("a", (8, 4), torch.bfloat16) + 0)
