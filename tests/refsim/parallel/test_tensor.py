"""Tensor parallel: a column-parallel and a row-parallel linear against the same two linears on one device."""

import pytest
import torch
import torch.nn.functional as F

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
