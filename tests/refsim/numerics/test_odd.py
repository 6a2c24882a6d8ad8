"""Odd inputs of the pinned functions: no values, huge ones, other dtypes, shapes that do not fit."""

from __future__ import annotations

import pytest
import torch

from refsim.base.errors import UserError
from refsim.numerics import accumulate, eltwise, matmul, pack
from tests.refsim.helpers import assert_one_sentence

ONES = torch.ones(2, 2)


@pytest.mark.parametrize("level", ["exact", "fast"])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(5, 0, 4), (0, 8, 4), (4, 8, 0)])
@pytest.mark.parametrize("wide", [True, False])
def test_nothing_to_multiply_gives_zeros_or_what_was_there(rows, depth, columns, wide, level):
    pytest.importorskip("numba")
    operands = torch.ones(rows, depth), torch.ones(depth, columns)
    how = {"fidelity": "HiFi4", "fp32_dest_acc_en": wide, "level": level}
    assert torch.equal(matmul(*operands, **how), torch.zeros(rows, columns))
    start = torch.full((rows, columns), 3.0)
    assert torch.equal(matmul(*operands, start=start, **how), start)


@pytest.mark.usefixtures("formulas")
@pytest.mark.parametrize("fidelity", ["LoFi", "HiFi4"])
@pytest.mark.parametrize("wide", [True, False])
def test_zeros_alone_give_zeros(fidelity, wide):
    """A tile that padding alone fills."""
    assert not matmul(
        torch.zeros(64, 64), torch.ones(64, 1), fidelity=fidelity, fp32_dest_acc_en=wide, level="fast"
    ).any()


@pytest.mark.usefixtures("formulas")
@pytest.mark.parametrize("huge", [3e38, torch.inf])
def test_one_huge_value_leaves_the_other_rows_as_they_are(huge):
    g = torch.Generator().manual_seed(0)
    in0 = torch.randn(40, 32, generator=g)
    in1 = torch.randn(32, 8, generator=g)
    in0[7, 3] = huge
    out = matmul(in0, in1, fidelity="HiFi4", fp32_dest_acc_en=True, level="fast")
    others = torch.arange(40) != 7
    torch.testing.assert_close(out[others], in0[others] @ in1, rtol=0, atol=0.05)
    assert not out[7].isnan().any()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: matmul(ONES.bfloat16(), ONES.bfloat16(), fidelity="HiFi2"),
            "matmul takes float32 tensors, not bfloat16",
        ),
        (lambda: eltwise("add", ONES.double(), ONES), "'add' takes float32 tensors, not float64"),
        (lambda: eltwise("mul", torch.ones(2), torch.ones(3)), r"broadcast, not \(2,\) and \(3,\)"),
        (lambda: pack(ONES.half(), "bfloat16"), "bfloat16 takes float32 tensors, not float16"),
        (lambda: pack([1.0], "bfloat16"), "not list"),
        (lambda: accumulate(ONES, ONES.bfloat16(), dtype="bfloat16", fp32_dest_acc_en=False), "not bfloat16"),
        (lambda: accumulate(torch.ones(2), torch.ones(3), dtype="float32", fp32_dest_acc_en=True), "broadcast"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(call, says):
    with pytest.raises(UserError, match=says) as caught:
        call()
    assert_one_sentence(str(caught.value))
