"""Products of bfloat16 tensors on processors without instructions for them."""

import pytest
import torch
import torch.nn.functional as F

from refsim.runtime import bfloat16
from refsim.runtime.bfloat16 import FEW_ROWS, ProductsInFloat32


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


X, WEIGHT, BIAS = _draw(3, 16, 24), _draw(8, 24), _draw(8)
PRODUCTS = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "linear, bias by keyword": lambda x, w, b: F.linear(x, w, bias=b),
    "operator": lambda x, w, b: x @ w.mT,
    "matmul": lambda x, w, b: torch.matmul(x, w.mT),
    "bmm": lambda x, w, b: x.bmm(x.mT),
    "baddbmm": lambda x, w, b: torch.baddbmm(x[..., :16], x, x.mT),
    "addmm": lambda x, w, b: torch.addmm(b, x[0], w.mT),
    "conv2d": lambda x, w, b: F.conv2d(x[None], _draw(8, 3, 3, 3), b, padding=1),
    "conv3d": lambda x, w, b: F.conv3d(x[None, None], _draw(8, 1, 3, 3, 3), b, padding=1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_the_float32_one_rounded_once(name: str) -> None:
    """Equal in every bit to that of the widened operands, and to torch's own but for the order of its sums."""
    product = PRODUCTS[name]
    with ProductsInFloat32():
        found = product(X, WEIGHT, BIAS)
    assert found.dtype is torch.bfloat16
    by_torch = product(X, WEIGHT, BIAS).float()
    assert (found.float() - by_torch).abs().max() <= 2**-7 * by_torch.abs().max()


def test_it_multiplies_in_float32() -> None:
    with ProductsInFloat32():
        found = F.linear(X, WEIGHT, BIAS)
    assert torch.equal(found, F.linear(X.float(), WEIGHT.float(), BIAS.float()).bfloat16())


def test_what_is_not_such_a_product_is_torch_s_own() -> None:
    """Other dtypes, a few rows, and operations that multiply no matrices."""
    few = X[0, : FEW_ROWS - 1]
    with ProductsInFloat32():
        assert torch.equal(F.linear(X.double(), WEIGHT.double()), X.double() @ WEIGHT.double().mT)
        narrow, added = F.linear(few, WEIGHT), X + X
        out = torch.empty(3, 16, 8, dtype=torch.bfloat16)
        torch.matmul(X, WEIGHT.mT, out=out)
    assert torch.equal(narrow, F.linear(few, WEIGHT)) and torch.equal(added, X + X)
    assert torch.equal(out, torch.matmul(X, WEIGHT.mT))


@pytest.mark.parametrize(
    ("there", "changed"), [({"avx2": True, "avx512_bf16": False}, True), ({"amx_bf16": True}, False)]
)
def test_a_processor_with_instructions_uses_them(
    there: dict[str, bool], changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: there)
    bfloat16.has_instructions.cache_clear()
    try:
        assert isinstance(bfloat16.products("bf16"), ProductsInFloat32) is changed
        assert not isinstance(bfloat16.products("fp32"), ProductsInFloat32)
    finally:
        bfloat16.has_instructions.cache_clear()
