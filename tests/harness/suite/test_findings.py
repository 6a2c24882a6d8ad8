"""Programs whose values are right by chance, or whose mistake no assertion sees."""

from __future__ import annotations

import pytest
import ttnn


@pytest.mark.parametrize("device_params", [{"fabric_config": ttnn.FabricConfig.FABRIC_1D}], indirect=True)
@pytest.mark.parametrize("mesh_device", [(2, 4)], indirect=True, ids=str)
def test_ring_on_a_line(mesh_device):
    x = ttnn.ones((1, 1, 32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh_device)
    whole = ttnn.all_gather(x, dim=3, cluster_axis=1, topology=ttnn.Topology.Ring)
    assert ttnn.to_torch(ttnn.get_device_tensors(whole)[0]).sum() == 32 * 128


def test_random(device):
    x = ttnn.rand((32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
    assert ttnn.to_torch(x).max() <= 1
