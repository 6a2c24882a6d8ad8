"""The matrix unit beyond the golden values: an implementation on Python's integers, and level fast beside exact."""

from __future__ import annotations

import importlib.util
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.base.errors import UserError
from refsim.numerics import ARCHES, FIDELITIES, eltwise, matmul

VALUES = st.floats(-4, 4, width=16).map(lambda value: value if abs(value) > 1e-3 else 0.0)


def half_up(x: Fraction) -> int:
    return math.floor(x + Fraction(1, 2))


def half_away(x: Fraction) -> int:
    return -half_up(-x) if x < 0 else half_up(x)


def split(value: float) -> tuple[int, int, int]:
    """Sign, mantissa of 11 bits and exponent of a value that 11 bits hold."""
    fraction, exponent = math.frexp(abs(value))
    return (-1 if value < 0 else 1), int(fraction * 2**11), exponent - 1


def parts(value: float, port: str, low: bool) -> tuple[Fraction, int]:
    """What a port sees of a value, and the exponent that its products are aligned by."""
    sign, mantissa, exponent = split(value)
    if port == "b":
        seen, unit = ((mantissa & 15) << 3, -13) if low else (mantissa >> 4, -6)
    else:
        seen, unit = (mantissa >> 1 & 31, -9) if low else (mantissa >> 6, -4)
    return sign * seen * Fraction(2) ** (exponent + unit), exponent - (low and (7 if port == "b" else 5))


def dot(row: list[float], column: list[float], phases: int, bits: int) -> Fraction:
    """One value of the destination by exact fractions, from the words of the documentation."""
    held = Fraction(0)
    for tile in range(0, len(row), 32):
        for phase in range(phases):
            for half in (0, 16):
                groups = []
                for start in (tile + half, tile + half + 8):
                    pairs = [
                        (parts(b, "b", bool(phase & 2)), parts(a, "a", bool(phase & 1)))
                        for b, a in zip(row[start : start + 8], column[start : start + 8], strict=True)
                        if a and b
                    ]
                    if pairs:
                        top = max(eb + ea for (_, eb), (_, ea) in pairs)
                        unit = Fraction(2) ** (top - 10)
                        groups.append((sum(half_away(b * a / unit) for (b, _), (a, _) in pairs) * unit, top))
                held = update(held, groups, bits)
    return held


def update(held: Fraction, groups: list[tuple[Fraction, int]], bits: int) -> Fraction:
    tops = [top for _, top in groups] + ([math.floor(math.log2(abs(held)))] if held else [])
    if not tops:
        return held
    unit = Fraction(2) ** (max(tops) - 23)
    coarse = Fraction(2) ** (max(tops) - 10) if bits == 8 else unit
    total = half_away(half_away(held / unit) * unit / coarse) * coarse
    for value, _ in groups:
        total += half_up(half_up(value / unit) * unit / coarse) * coarse
    if not total:
        return total
    last = Fraction(2) ** (math.floor(math.log2(abs(total))) - bits + 1)
    return half_away(total / last) * last


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(VALUES, VALUES), min_size=64, max_size=64),
    st.integers(1, 4),
    st.sampled_from([8, 24]),
)
def test_exact_is_what_the_documentation_says(pairs, phases, bits):
    row, column = ([pair[side] for pair in pairs] for side in (0, 1))
    ours = matmul(
        torch.tensor([row]),
        torch.tensor([column]).T,
        fidelity=FIDELITIES[phases - 1],
        fp32_dest_acc_en=bits == 24,
        arch="blackhole",
    )
    assert ours.item() == float(dot(row, column, phases, bits))


def test_k_that_is_no_whole_tile_is_filled_with_zeros():
    generator = torch.Generator().manual_seed(0)
    in0, in1 = torch.randn(3, 40, generator=generator), torch.randn(40, 5, generator=generator)
    whole = torch.nn.functional.pad(in0, (0, 24)), torch.nn.functional.pad(in1, (0, 0, 0, 24))
    assert torch.equal(matmul(in0, in1), matmul(*whole))


def test_only_wormhole_scales_a_negative_unit_wrongly():
    """tt-metal 38306: what is left is -1 in the last place of what was largest, here 2^-23 of the destination's 1."""
    in0, in1 = torch.zeros(1, 64), torch.zeros(64, 1)
    in0[0, 0], in1[0, 0] = 1.0, 1.0
    in0[0, 32], in1[32, 0] = 1.0, -1.0
    in0[0, 40], in1[40, 0] = 2.0**-13, -(2.0**-10)  # in the other group of eight, which keeps it
    left = {arch: matmul(in0, in1, fidelity="LoFi", arch=arch).item() for arch in ARCHES}
    assert left["blackhole"] == -(2.0**-23)
    assert left["wormhole_b0"] != left["blackhole"]


def test_nothing_times_infinity_is_nothing():
    """As the unit has it: a zero operand makes a zero, whatever the other one is; too large a sum is infinite."""
    zero, infinite = torch.zeros(1, 32), torch.full((32, 1), math.inf)
    assert matmul(zero, infinite).item() == 0.0
    assert matmul(torch.full((1, 32), 1e30), torch.full((32, 1), 1e30)).item() == math.inf


def normal(shape, generator):
    return torch.randn(shape, generator=generator)


def chosen(shape, share, generator):
    return (torch.rand(shape, generator=generator) < share).float()


FAMILIES = {
    "normal": normal,
    "positive": lambda shape, generator: torch.rand(shape, generator=generator),
    "sparse": lambda shape, generator: normal(shape, generator) * chosen(shape, 0.2, generator),
    "heavy": lambda shape, generator: normal(shape, generator) * normal(shape, generator).exp(),
    "outliers": lambda shape, generator: normal(shape, generator) * (1 + 30 * chosen(shape[-1:], 0.01, generator)),
}


@pytest.mark.usefixtures("formulas")
@pytest.mark.parametrize("depth", [512, 2432, 9728])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("fidelity", "wide"), [("LoFi", True), ("HiFi2", True), ("HiFi2", False), ("HiFi4", False)])
def test_fast_is_as_far_off_as_exact(family, wide, fidelity, depth):
    """1 - PCC within 5 % (fp32 destination) and 3 % (16-bit), the gain within 3e-4, of what the destination holds."""
    generator = torch.Generator().manual_seed(1)
    size = 96 if wide else 64
    in0, in1 = (FAMILIES[family]((size, depth), generator).bfloat16().float() for _ in range(2))
    reference = in0.double() @ in1.double().T
    options = {"fidelity": fidelity, "fp32_dest_acc_en": wide}
    exact, fast = (far(matmul(in0, in1.T, level=level, **options), reference) for level in ("exact", "fast"))
    assert fast[0] == pytest.approx(exact[0], rel=0.05 if wide else 0.03)
    assert fast[1] == pytest.approx(exact[1], abs=3e-4)


@pytest.mark.parametrize(("wide", "fidelity"), [(True, "HiFi3"), (True, "HiFi4"), (False, "HiFi2")])
def test_fast_is_exact_of_few_products(wide, fidelity):
    """Of 4096 results 1 - PCC differs by 3 % from draw to draw, of heavy tails by half: samples say little."""
    in0, in1 = (FAMILIES["heavy"]((64, 512), torch.Generator().manual_seed(seed)) for seed in (1, 2))
    how = {"fidelity": fidelity, "fp32_dest_acc_en": wide}
    assert torch.equal(matmul(in0, in1.T, level="fast", **how), matmul(in0, in1.T, level="exact", **how))


@pytest.mark.usefixtures("formulas")
@pytest.mark.parametrize("family", FAMILIES)
def test_fast_holds_in_fp32_what_alignment_costs(family):
    """At HiFi4 in fp32, 3e-9 to 8e-8 is left, which fast knows from samples: 1 - PCC is within a tenth."""
    generator = torch.Generator().manual_seed(1)
    in0, in1 = (FAMILIES[family]((128, 2432), generator).bfloat16().float() for _ in range(2))
    reference = in0.double() @ in1.double().T
    exact, fast = (far(matmul(in0, in1.T, level=level), reference) for level in ("exact", "fast"))
    assert fast[0] == pytest.approx(exact[0], rel=0.1)
    assert fast[1] == pytest.approx(exact[1], abs=2e-5)


@pytest.mark.usefixtures("formulas")
def test_fast_needs_no_numba(monkeypatch):
    """The 16-bit destination by torch and by the compiled loop: the same formulas, so the same bits."""
    generator = torch.Generator().manual_seed(3)
    in0, in1 = torch.randn(5, 80, generator=generator), torch.randn(80, 70, generator=generator)
    options = {"fidelity": "HiFi3", "fp32_dest_acc_en": False}
    compiled = matmul(in0, in1, level="fast", **options)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch.equal(matmul(in0, in1, level="fast", **options), compiled)
    with pytest.raises(UserError, match=r"pip install 'refsim\[numerics\]'"):
        matmul(in0, in1, **options)


@pytest.mark.usefixtures("formulas")
def test_a_sum_of_products_leaves_the_process_as_it_was():
    before = torch.backends.mkldnn.matmul.fp32_precision
    matmul(torch.ones(32, 32), torch.ones(32, 32), level="fast")
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def far(x: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """1 - PCC and gain."""
    x, y = x.double().flatten(), reference.flatten()
    gain = (x @ y / (y @ y)).item()
    x, y = x - x.mean(), y - y.mean()
    return 1 - (x @ y / (x.norm() * y.norm())).item(), gain


@pytest.mark.parametrize("wide", [True, False])
def test_fast_adds_nothing_to_a_small_number(wide):
    """A zero has no exponent that anything is shifted to: an epsilon beside a variance of zero stays."""
    small = torch.tensor([1e-6, -3e-5]).bfloat16().float()
    nothing = torch.zeros(2)
    for a, b in ((small, nothing), (nothing, small), (nothing, nothing)):
        assert torch.equal(eltwise("add", a, b, fp32_dest_acc_en=wide, level="fast"), a + b)


@pytest.mark.parametrize("operation", ["add", "sub", "mul"])
@pytest.mark.parametrize("wide", [True, False])
def test_fast_element_wise(operation, wide):
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(4096, generator=generator).bfloat16().float() for _ in range(2))
    exact, fast = (eltwise(operation, a, b, fp32_dest_acc_en=wide, level=level) for level in ("exact", "fast"))
    unit = torch.maximum(a.abs(), b.abs()) if operation != "mul" else (a * b).abs()
    assert ((exact - fast).abs() <= unit * 2.0**-7 * 1.01).all()
    assert (exact == fast).float().mean() > 0.95


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fidelity": "HiFi5"}, "fidelity 'HiFi5' does not exist; choose one of LoFi"),
        ({"arch": "grayskull"}, "choose one of wormhole_b0, blackhole"),
        ({"level": "slow"}, "choose one of exact, fast"),
    ],
)
def test_choices_are_checked(change, said):
    with pytest.raises(UserError, match=said):
        matmul(torch.zeros(1, 32), torch.zeros(32, 1), **change)


def test_shapes_are_checked():
    with pytest.raises(UserError, match="reshape batches into M"):
        matmul(torch.zeros(2, 1, 32), torch.zeros(32, 1))
