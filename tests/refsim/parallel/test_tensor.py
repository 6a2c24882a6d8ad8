"""Tensor parallel: a column-parallel and a row-parallel linear against the same two linears on one device."""

import pytest
import torch
import torch.nn.functional as F

from refsim.parallel.tensor import shuffle_qkv
from tests.refsim.helpers import relative_rmse, run, sent

# id: (mesh, parallel)
MESHES = {
    "n150-tp1": ("n150", "tp1"),
    "n300-tp2": ("n300", "tp2"),
    "t3k-sp2tp4": ("t3k", "sp2_tp4"),
    "t3k_1x8-tp8": ("t3k-1x8", "tp8"),
}


def serial(features: int, hidden: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    w1, b1 = torch.randn(hidden, features, generator=g), torch.randn(hidden, generator=g)
    w2, b2 = torch.randn(features, hidden, generator=g), torch.randn(features, generator=g)
    x = torch.randn(2, 3, features, generator=g)
    w1, b1, w2, b2, x = (t.double() for t in (w1, b1, w2, b2, x))
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


@pytest.mark.parametrize("garbage", [0.0, 1e4], ids=["zeros", "garbage"])
@pytest.mark.parametrize("mesh", MESHES)
def test_a_megatron_pair_matches_the_serial_pair(mesh, garbage):
    """Whatever stands in a padded lane of the hidden activation adds nothing; the bias is added once."""
    arguments = {"features": 16, "hidden": 38, "padded": 40, "garbage": garbage}
    result = run("megatron_pair", *MESHES[mesh], arguments)
    assert relative_rmse(result.tensors["out"], serial(16, 38)) <= 1e-6


@pytest.mark.parametrize("mesh", MESHES)
def test_one_reduction_and_one_gather_per_pair(mesh):
    arguments = {"features": 16, "hidden": 38, "padded": 40, "garbage": 0.0}
    result = run("megatron_pair", *MESHES[mesh], arguments, trace=True)
    tp = int(MESHES[mesh][1].rpartition("tp")[2])
    size = 2 * 3 * 16 * 4
    for of_rank in result.bytes_per_rank:
        assert set(of_rank) == ({"reduce_scatter@tp", "all_gather@tp"} if tp > 1 else set())
        assert sent(of_rank, "reduce_scatter", "tp") == (tp - 1) * size // tp
    assert {value["placement"] for value in result.values} == {"S(2)" if tp > 1 else "R"}
    assert sum(e["op"] == "linear" for e in result.trace) == 2 * len(result.values)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_fused_qkv_is_reshuffled_by_device(devices):
    """Equal cuts give each device q, k and v of its own heads."""
    heads, features = 4, 3
    lanes = [f"{name}{head}{lane}" for name in "qkv" for head in range(heads) for lane in range(features)]
    order = shuffle_qkv(torch.arange(len(lanes)), devices).tolist()
    local = heads // devices
    for device, share in enumerate(torch.tensor(order).chunk(devices)):
        mine = range(device * local, (device + 1) * local)
        wanted = [f"{name}{head}{lane}" for name in "qkv" for head in mine for lane in range(features)]
        assert [lanes[i] for i in share] == wanted


def test_fused_qkv_weights_keep_their_in_features():
    weight = torch.randn(12, 5)
    assert torch.equal(shuffle_qkv(weight, 2)[:, 0], shuffle_qkv(weight[:, 0], 2))
