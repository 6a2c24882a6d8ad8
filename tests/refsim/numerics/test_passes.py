"""One pass over a tensor, compiled, gives the bits of the same formulas in torch."""

from __future__ import annotations

import importlib

import pytest
import torch

from refsim.numerics import eltwise, formats
from refsim.numerics.formats import round_ties_away, truncate
from refsim.numerics.matrix_unit import FIDELITIES

pytest.importorskip("numba")
MODULES = (formats, importlib.import_module("refsim.numerics.eltwise"))


def values(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4096, generator=generator) * torch.randn(4096, generator=generator).mul(4).exp2()
    x[seed::16] = 0.0
    x[seed + 1 :: 64] = -0.0
    return x


def both(monkeypatch: pytest.MonkeyPatch, function, *arguments, **options) -> list[torch.Tensor]:
    results = []
    for large in (1, 1 << 30):
        for module in MODULES:
            monkeypatch.setattr(module, "LARGE", large)
        results.append(function(*arguments, **options))
    return results


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_rounding_and_cutting(monkeypatch):
    bits = torch.randint(-(2**31), 2**31, (4096,), generator=torch.Generator().manual_seed(0))
    x = bits.to(torch.int32).view(torch.float32)
    for dropped in (6, 7, 10):
        assert same_bits(*both(monkeypatch, round_ties_away, x, dropped))
        assert same_bits(*both(monkeypatch, truncate, x, dropped))
    assert same_bits(*both(monkeypatch, formats.flush, x))


@pytest.mark.parametrize("wide", [True, False])
def test_elements(monkeypatch, wide):
    a = values(0)
    b = values(5)
    how = {"fp32_dest_acc_en": wide, "level": "fast"}
    for operation in ("add", "sub"):
        assert same_bits(*both(monkeypatch, eltwise, operation, a, b, **how))
    for fidelity in FIDELITIES:
        assert same_bits(*both(monkeypatch, eltwise, "mul", a, b, fidelity=fidelity, **how))


def test_a_zero_rounds_nothing_away(monkeypatch):
    """Whatever the other operand: its exponent is none, not 2^0."""
    small = torch.tensor([1e-6, -3e-5]).bfloat16().float()
    for sum_of in both(monkeypatch, eltwise, "add", small, torch.zeros(2), level="fast"):
        assert torch.equal(sum_of, small)
