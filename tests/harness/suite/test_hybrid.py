"""A device whose cores have allocators of their own, which a variable asks for that a fixture sets."""

from __future__ import annotations

import os

import pytest
import torch
import ttnn

HYBRID = "TT_METAL_ALLOCATOR_MODE_HYBRID"


@pytest.fixture(scope="module")
def device():
    os.environ[HYBRID] = "1"
    opened = ttnn.CreateDevice(device_id=0)
    yield opened
    ttnn.close_device(opened)
    del os.environ[HYBRID]


def one_core(device, x, value, one_device=False):
    core = ttnn.CoreRange(ttnn.CoreCoord(x, 0), ttnn.CoreCoord(x, 0))
    shards = ttnn.ShardSpec(ttnn.CoreRangeSet([core]), [1, 64], ttnn.ShardOrientation.ROW_MAJOR)
    memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shards)
    memory.experimental_set_per_core_allocation(True)
    how = {"dtype": ttnn.uint8, "layout": ttnn.ROW_MAJOR_LAYOUT}
    if not one_device:
        return ttnn.from_torch(value, device=device, memory_config=memory, **how)
    place = ttnn.MeshCoordinate(0, 0)
    return ttnn._ttnn.tensor.experimental_to_single_device(ttnn.from_torch(value, **how), device, place, memory)


def test_cores_have_places_of_their_own(device):
    """Two tensors at one address of two cores are not one."""
    values = [torch.arange(64, dtype=torch.uint8).reshape(1, 64) + 64 * i for i in range(3)]
    tensors = [one_core(device, x, value, x == 2) for x, value in enumerate(values)]
    place = ttnn.MeshCoordinate(0, 0)
    addresses = {t.experimental_per_core_buffer_address(place, ttnn.CoreCoord(x, 0)) for x, t in enumerate(tensors)}
    assert len(addresses) == 1
    for tensor, value in zip(tensors, values, strict=True):
        assert torch.equal(ttnn.to_torch(ttnn.from_device(tensor)), value)
    ttnn.deallocate(tensors[0])
    with pytest.raises(RuntimeError, match="deallocated"):
        ttnn.to_torch(tensors[0])
