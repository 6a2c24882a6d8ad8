"""A feed-forward over the four devices of a row of a T3K, whose last sum over the devices was forgotten.

pytest --ttnn-mock t3k test_forgotten_sum.py
"""

import pytest
import torch
import ttnn


@pytest.mark.parametrize("device_params", [{"fabric_config": ttnn.FabricConfig.FABRIC_1D}], indirect=True)
@pytest.mark.parametrize("mesh_device", [(2, 4)], indirect=True)
def test_feed_forward(mesh_device):
    torch.manual_seed(0)
    x = torch.randn(1, 1, 64, 256)
    up = torch.randn(256, 512) / 16
    down = torch.randn(512, 256) / 22

    def put(tensor, dim):
        cut = ttnn.ShardTensor2dMesh(mesh_device, mesh_shape=(2, 4), dims=(None, dim))
        return ttnn.from_torch(
            tensor, device=mesh_device, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16, mesh_mapper=cut
        )

    hidden = ttnn.linear(put(x, None), put(up, 1), activation="relu")  # columns over mesh axis 1
    out = ttnn.linear(hidden, put(down, 0))  # rows: every device has a part of the sum, and nobody adds them up
    normed = ttnn.rms_norm(out)

    wanted = torch.nn.functional.rms_norm(torch.relu(x @ up) @ down, (256,))
    for shard in ttnn.get_device_tensors(normed):
        both = torch.stack([ttnn.to_torch(shard).flatten().float(), wanted.flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.999
