"""Storage formats against torch's own bfloat16 and against sums written out in Python; ttnn's host: tests/tt_impl."""

from __future__ import annotations

import math

import pytest
import torch

from refsim.base.errors import UserError
from refsim.numerics import accumulate, from_host, pack
from refsim.numerics.formats import round_ties_away, truncate


def test_truncation_drops_bits_and_denormals():
    x = torch.tensor([1 + 2**-7 + 2**-8, -(1 + 2**-10 + 2**-11), 1e-40, -0.0])
    assert truncate(x, 7).tolist() == [1 + 2**-7, -1.0, 0.0, 0.0]
    assert truncate(x, 10).tolist() == [1 + 2**-7 + 2**-8, -(1 + 2**-10), 0.0, 0.0]


def test_ties_go_away_from_zero():
    x = torch.tensor([1 + 2**-8, -(1 + 2**-8), 1 + 2**-8 - 2**-23, 3.4028235e38, math.nan, -math.inf])
    assert round_ties_away(x, 7).tolist() == [1 + 2**-7, -(1 + 2**-7), 1.0, math.inf, math.inf, -math.inf]


def block_by_hand(values: list[float], bits: int) -> list[float]:
    """One block by Python's floats: the shared exponent is the largest; ties to even, saturating."""
    shared = max(math.frexp(value)[1] - 1 for value in values if value)
    unit = 2.0 ** (shared - (bits - 1))
    return [math.copysign(min(round(abs(value) / unit), 2**bits - 1) * unit, value) for value in values]


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat8_b", 7), ("bfloat4_b", 3)])
def test_host_blocks(dtype, bits):
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    wanted = [block_by_hand(block, bits) for block in x.reshape(-1, 16).tolist()]
    assert from_host(x, dtype).reshape(-1, 16).tolist() == wanted


def test_the_host_drops_bits_before_it_rounds():
    """A value far below the largest loses the bits that would have broken a tie upwards."""
    block = torch.zeros(16)
    block[:2] = torch.tensor([1.0, 2**-7 * (1 + 2**-23)])
    assert from_host(block, "bfloat8_b")[1].item() == 0.0


def test_host_and_packer_differ_as_documented():
    """Relative rms error of Gaussian data: bfp8 0.0073 and 0.0082, bfp4 0.117 and 0.210."""
    x = torch.randn(4096, 256, generator=torch.Generator().manual_seed(0))

    def error(y):
        return ((y - x).norm() / x.norm()).item()

    assert error(from_host(x, "bfloat8_b")) == pytest.approx(0.0073, rel=0.02)
    assert error(pack(x, "bfloat8_b")) == pytest.approx(0.0082, rel=0.02)
    assert error(from_host(x, "bfloat4_b")) == pytest.approx(0.117, rel=0.02)
    assert error(pack(x, "bfloat4_b")) == pytest.approx(0.210, rel=0.02)


def test_l1_accumulation_rounds_the_exact_sum_once():
    held, x = torch.tensor([1.0, 256.0, 1.0]), torch.tensor([2.0**-8, 1.0, 2.0**-8 * (1 + 2.0**-7)])
    wanted = [1.0, 256.0, 1 + 2.0**-7]
    assert accumulate(held, x, dtype="bfloat16", fp32_dest_acc_en=False).tolist() == wanted
    assert accumulate(held, x, dtype="float32", fp32_dest_acc_en=True).tolist() == (held + x).tolist()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: pack(torch.zeros(4, 20), "bfloat8_b"), "pad it to a multiple of 16"),
        (lambda: pack(torch.zeros(16), "float16"), "choose one of bfloat16, bfloat8_b, bfloat4_b"),
        (lambda: accumulate(torch.zeros(1), torch.zeros(1), dtype="bfloat8_b", fp32_dest_acc_en=True), "not in 'bfl"),
    ],
)
def test_mistakes_are_sentences(call, said):
    with pytest.raises(UserError, match=said):
        call()
