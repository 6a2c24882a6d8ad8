"""Reductions: which bits of the data a fidelity sees; typecasts."""

from __future__ import annotations

import pytest
import torch

from refsim.base.errors import UserError
from refsim.numerics import matmul, pack, reduce, typecast

LAST_BIT = 1 + 2.0**-7


def test_hifi2_sees_the_last_bit_of_a_column_but_not_of_a_row():
    x = torch.full((32, 32), LAST_BIT)
    assert reduce("sum", x, dim="last", fidelity="HiFi2").unique().tolist() == [32.0]
    assert reduce("sum", x, dim="second_last", fidelity="HiFi2").unique().tolist() == [32 * LAST_BIT]
    assert reduce("sum", x, dim="last", fidelity="HiFi4").unique().tolist() == [32 * LAST_BIT]


@pytest.mark.parametrize("level", ["exact", "fast"])
def test_shapes_and_values(level):
    x = torch.randint(-8, 8, (2, 3, 64, 32), generator=torch.Generator().manual_seed(0)).float()
    for dim, dims in (("last", (-1,)), ("second_last", (-2,)), ("both", (-2, -1))):
        assert torch.equal(reduce("sum", x, dim=dim, level=level).round(), x.sum(dims, keepdim=True))
        assert torch.equal(reduce("max", x, dim=dim, level=level), x.amax(dims, keepdim=True))
    tile = x[..., :32, :]  # the root of 1 / 1024 is exact, and so are sums of 8 bits
    assert torch.equal(reduce("mean", tile, dim="both", level=level), tile.mean((-2, -1), keepdim=True))


def test_a_mean_multiplies_by_a_scaler_in_bf16():
    x = torch.ones(1, 2432)
    cut = (torch.tensor(1 / 2432).view(torch.int32) >> 16 << 16).view(torch.float32)
    assert reduce("mean", x).item() == (2432 * cut).item()


def test_over_both_dims_tiles_add_to_one_value_and_the_root_of_the_scaler_counts_twice():
    """300 tiles of 1 grow from 256 on by 2 each, halves away from zero; within a tile 1024 of 1 / 1024 are exact."""
    narrow = {"fidelity": "HiFi4", "fp32_dest_acc_en": False}
    assert reduce("sum", torch.full((32, 300 * 32), 2.0**-10), dim="both", **narrow).item() == 344
    assert reduce("sum", torch.full((320, 32), 2.0**-10), dim="both", **narrow).item() == 10
    root = (torch.tensor(12.0).rsqrt().view(torch.int32) >> 16 << 16).view(torch.float32)
    tf32 = torch.tensor(12.0).rsqrt().view(torch.int32) >> 13 << 13
    tf32 = tf32.view(torch.float32).item()
    means = reduce("mean", torch.ones(3, 4), dim="both", dtype="float32").item()
    assert means == pytest.approx(12 * tf32 * tf32, rel=2.0**-10)
    row = (3 * root).view(torch.int32) >> 16 << 16  # of four columns, cut to the dtype, too
    assert reduce("mean", torch.ones(3, 4), dim="both").item() == (4 * row.view(torch.float32) * root).item()
    column = torch.zeros(64, 32)
    column[:, 0] = torch.tensor([256.0, 1.0] + [0.0] * 62)
    assert reduce("sum", column, dim="both").item() == 256
    assert reduce("sum", column, dim="both", dtype="float32").item() == 257


@pytest.mark.parametrize("shape", [(0, 32), (1, 1, 0, 32), (0, 32, 32), (2, 32, 0)])
def test_nothing_sums_to_zero(shape):
    for dim, dims in (("last", -1), ("second_last", -2), ("both", (-2, -1))):
        assert torch.equal(reduce("sum", torch.zeros(shape), dim=dim), torch.zeros(shape).sum(dims, keepdim=True))


@pytest.mark.parametrize("rows", [1, 40])
def test_both_dims_of_many_values(rows):
    x = torch.randint(-8, 8, (2, rows, 70), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(reduce("sum", x, dim="both"), x.sum((1, 2), keepdim=True))


def test_a_row_sum_is_a_matmul_with_ones():
    x = torch.randn(32, 2432, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    options = {"fidelity": "HiFi4", "fp32_dest_acc_en": False}
    assert torch.equal(reduce("sum", x, **options), matmul(x, torch.ones(2432, 1), **options))


def test_maxima_cut_float32_and_round_nothing():
    assert reduce("max", torch.tensor([[1 + 2.0**-11, 0.5]])).item() == 1.0


def test_typecast_to_bfp8_rounds_once():
    """1 + 2^-6 + 2^-7 + 2^-8 beside 2: the packer rounds to 7 bits, then to the block; a typecast to the block only."""
    block = torch.zeros(1, 16)
    block[0, :2] = torch.tensor([2.0, 1.0 + 2.0**-6 - 2.0**-7])
    assert typecast(block, "bfloat8_b")[0, 1].item() != pack(block, "bfloat8_b")[0, 1].item()
    assert typecast(block, "float32") is not None
    assert torch.equal(typecast(block, "bfloat16"), pack(block, "bfloat16"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: reduce("min", torch.zeros(1, 1)), "operation 'min' does not exist; choose one of sum"),
        (lambda: reduce("sum", torch.zeros(1, 1), dim="first"), "choose one of last, second_last, both"),
        (lambda: reduce("sum", torch.zeros(1)), "add a dim of 1"),
        (lambda: reduce("sum", torch.zeros(1, 1), dim="both", scaler=-1.0), "the root of a scaler over both dims"),
        (lambda: typecast(torch.zeros(1, 16), "uint8"), "has no storage rule"),
    ],
)
def test_mistakes_are_sentences(call, said):
    with pytest.raises(UserError, match=said):
        call()
