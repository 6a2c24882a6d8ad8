"""The vector unit: its multiply-add beside Python's integers, its functions beside float64 in last places."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.base.errors import UserError
from refsim.numerics import FUNCTIONS, sfpu, sfpu_powers
from refsim.numerics.composites import elementwise
from refsim.numerics.vector_unit import VectorUnit

NUMBERS = st.floats(-(2.0**40), 2.0**40, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-40)


def multiply_add(x: float, y: float, z: float) -> float:
    """Fused, but for bits of the product below 26 places and bits lost in the shift: each leave a sticky bit."""

    def split(value):
        fraction, exponent = math.frexp(value)
        return int(abs(fraction) * 2**24), exponent - 1

    (xm, xe), (ym, ye), (zm, ze) = map(split, (x, y, z))
    product = xm * ym
    product = product >> 20 | (product & 0xFFFFF != 0)
    if not product:
        return z
    zm <<= 3
    top = max(xe + ye, ze) if zm else xe + ye
    product, zm = sticky(product, top - xe - ye), sticky(zm, top - ze) if zm else 0
    total = math.copysign(product, x * y) + math.copysign(zm, z)
    magnitude = int(abs(total))
    if not magnitude:
        return 0.0
    over = magnitude.bit_length() - 27
    # on Wormhole only the last of the bits that leave on the right is kept
    magnitude = magnitude >> over | magnitude & 1 if over > 0 else magnitude << -over
    rounded = magnitude >> 3
    rest = magnitude & 7
    rounded += rest > 4 or (rest == 4 and rounded & 1)
    return math.copysign(math.ldexp(rounded, top + over - 23), total)


def sticky(magnitude: int, by: int) -> int:
    shifted = magnitude >> by
    return shifted | (shifted << by != magnitude) if shifted else 0


@settings(max_examples=300, deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS, st.booleans())
def test_multiply_add(x, y, z, cancelling):
    if cancelling:
        z = struct.unpack("f", struct.pack("f", -x * y))[0]
    ours = VectorUnit("wormhole_b0", "exact", True).mad(*(torch.tensor([value]) for value in (x, y, z)))
    assert ours.item() == multiply_add(x, y, z)


EXACT = {
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "tanh": torch.tanh,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
    "log": torch.log,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "mish": lambda x: x * torch.tanh(torch.nn.functional.softplus(x)),
    "gelu": lambda x: 0.5 * x * torch.erfc(-x / math.sqrt(2)),
}
POSITIVE = ("rsqrt", "sqrt", "log")


def every_bf16(function: str) -> torch.Tensor:
    """All bf16 values in range: nothing that under- or overflows before its time."""
    values = (torch.arange(65536, dtype=torch.int32) << 16).view(torch.float32)
    values = values[values.isfinite() & (values.abs() > 2.0**-120) & (values.abs() < 2.0**120)]
    if function in POSITIVE:
        return values[values > 0]
    return values if function == "reciprocal" else values[values.abs() < 87]


def many_float32(function: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(2_000_000 if function in ("sigmoid", "silu") else 200_000, generator=generator)
    if function in ("sigmoid", "silu"):
        return uniform - 17  # where 1 is the last place of e^-x, and the error largest
    if function in (*POSITIVE, "reciprocal"):
        return torch.exp2(uniform * 200 - 100)
    return (uniform - 0.5) * {"tanh": 20, "erf": 16 / 3}.get(function, 160)


def last_places(function: str, x: torch.Tensor, **options) -> float:
    """The largest error in units of the last place that the destination holds."""
    wanted = EXACT[function](x.double())
    bits = 24 if options["fp32_dest_acc_en"] else 8
    unit = torch.ldexp(torch.ones_like(wanted), torch.frexp(wanted).exponent - bits)
    return ((sfpu(function, x, **options).double() - wanted).abs() / unit).max().item()


@pytest.mark.parametrize(
    ("function", "approximate", "places"),
    [
        ("exp", False, 0.91),
        ("exp", True, 6.1),
        ("sigmoid", False, 0.87),
        ("silu", False, 0.91),
        ("tanh", False, 0.81),
        ("tanh", True, 10.0),
        ("rsqrt", False, 0.50),
        ("rsqrt", True, 0.68),
        ("sqrt", False, 0.50),
        ("sqrt", True, 0.68),
        ("reciprocal", False, 0.50),
        ("log", False, 0.78),
        ("sin", False, 0.50),
        ("cos", False, 0.50),
        ("erf", False, 1.06),
        ("mish", False, 1.49),
        ("mish", True, 4.0),
    ],
)
def test_error_of_every_bf16_value(function, approximate, places):
    error = last_places(function, every_bf16(function), approximate=approximate, fp32_dest_acc_en=False)
    assert error == pytest.approx(places, rel=0.1)


@pytest.mark.parametrize(
    ("function", "places"),
    [
        ("exp", 0.85),
        ("sigmoid", 2.8),
        ("silu", 3.2),
        ("tanh", 2.3),
        ("rsqrt", 1.09),
        ("sqrt", 0.85),
        ("reciprocal", 0.89),
        ("log", 0.88),
        ("sin", 2.0),
        ("cos", 1.54),
        ("erf", 4.9),
        ("mish", 4.4),
    ],
)
def test_error_in_a_wide_destination(function, places):
    """Within a tenth of the table."""
    error = last_places(function, many_float32(function), fp32_dest_acc_en=True)
    assert error == pytest.approx(places, rel=0.1)


POWERS = ((-2.5, 2.4, 4.0), (-1.0, 0.61, 1.9), (0.5, 0.86, 1.3), (2.5, 1.6, 3.8), (4.0, 1.8, 6.5), (7.0, 3.0, 10.0))
"""Exponent, largest error in last places of 16 and of 32 bits, bases from 1e-3 to 8."""


@pytest.mark.parametrize(("exponent", "narrow", "wide"), POWERS)
@pytest.mark.parametrize("of_tensor", [False, True])
def test_powers(exponent, narrow, wide, of_tensor):
    bases = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 8 + 1e-3
    for bits, places in ((8, narrow), (24, wide)):
        x = bases if bits == 24 else bases.bfloat16().float()
        wanted = x.double() ** exponent
        unit = torch.ldexp(torch.ones_like(wanted), torch.frexp(wanted).exponent - bits)
        vector = VectorUnit("wormhole_b0", "exact", bits == 24)
        error = (sfpu_powers.power(vector, x, torch.full_like(x, exponent), of_tensor=of_tensor) - wanted).abs() / unit
        assert places / 3 < error.max() <= places


def test_powers_of_special_values():
    """Of a number and of two tensors; NaN packs as infinity in 16 bits."""
    x = torch.tensor([0.0, -0.0, -2.0, -3.0, 2.0, 0.0, -2.0, 1e30, 1e-30, math.inf])
    exponent = torch.tensor([2.0, 3.0, 3.0, 2.0, 0.0, -1.0, 0.5, 3.0, 3.0, 2.0])
    for wide, of_tensor, of_zero in ((True, False, math.nan), (True, True, math.inf), (False, False, math.inf)):
        unit = VectorUnit("blackhole", "exact", wide)
        root = math.nan if wide else math.inf
        expected = torch.tensor([0.0, 0.0, -8.0, 9.0, 1.0, of_zero, root, math.inf, 0.0, math.inf])
        powers = sfpu_powers.power(unit, x, exponent, of_tensor=of_tensor)
        assert torch.allclose(powers, expected, rtol=1e-6, atol=0.0, equal_nan=True)


def test_whole_powers_are_products():
    """Unrounded between: 1.0390625 cubed is 1.1218247, which a 16-bit destination cuts to 1.1171875."""
    x = torch.tensor([1.0390625, -3.0])
    for wide, cube in ((True, 1.1218247413635254), (False, 1.1171875)):
        unit = VectorUnit("wormhole_b0", "exact", wide)
        assert [sfpu_powers.whole_power(unit, x, n).tolist() for n in (0, 1, 3)] == [
            [1.0, 1.0], [1.0390625, -3.0], [cube, -27.0],
        ]  # fmt: skip


def test_products_round_ties_to_even():
    """1.015625 times 1.25 is half way from 1.265625 to 1.2734375, 1.0625 squared from 1.125 to 1.1328125."""
    assert elementwise.multiply(torch.tensor([1.015625]), torch.tensor(1.25)).item() == 1.265625
    assert sfpu("square", torch.tensor([1.0625]), fp32_dest_acc_en=False).item() == 1.125


def test_gelu():
    """Relative 5.9e-3 accurate and 2.4e-2 absolute approximate, 1 - PCC of a normal distribution 1.8e-6 and 1.1e-4."""
    x = every_bf16("gelu")
    x = x[(x > -4.5) & (x.abs() > 1e-30)]
    wanted = EXACT["gelu"](x.double())
    error = sfpu("gelu", x, fp32_dest_acc_en=False).double() - wanted
    assert (error / wanted).abs().max() < 5.9e-3
    error = sfpu("gelu", x, fp32_dest_acc_en=False, approximate=True).double() - wanted
    assert error.abs().max().item() == pytest.approx(2.4e-2, rel=0.1)
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    wanted = EXACT["gelu"](x.double())
    for approximate, far in ((False, 1.8e-6), (True, 1.1e-4)):
        ours = sfpu("gelu", x, fp32_dest_acc_en=False, approximate=approximate).double()
        assert 1 - torch.corrcoef(torch.stack([ours, wanted]))[0, 1].item() == pytest.approx(far, rel=0.1)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("wide", [False, True])
def test_fast_is_the_same_algorithm(function, wide):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4096, generator=generator).mul(4).add(0.01).bfloat16().float()
    exact, fast = (sfpu(function, x, fp32_dest_acc_en=wide, level=level) for level in ("exact", "fast"))
    unit = 2.0 ** (-20 if wide else -7)
    assert ((exact - fast).abs() <= unit * exact.abs().clamp(min=0.01)).all()


def test_blackhole_has_reciprocals_of_its_own():
    """The approximate one is a table of 8 bits: 1.4 last places of bf16."""
    options = {"approximate": True, "fp32_dest_acc_en": False, "arch": "blackhole"}
    assert last_places("reciprocal", every_bf16("reciprocal"), **options) == pytest.approx(1.4, rel=0.1)
    x = torch.linspace(1, 2, 1001)
    ours = [sfpu("reciprocal", x, approximate=True, arch=arch) for arch in ("wormhole_b0", "blackhole")]
    assert not torch.equal(*ours)
    assert (ours[1] * x - 1).abs().max() < 2.0**-7


def test_special_values():
    x = torch.tensor([0.0, math.inf, -1.0, -math.inf])
    assert sfpu("reciprocal", x).tolist() == [math.inf, 0.0, -1.0, 0.0]
    assert sfpu("rsqrt", x[:2]).tolist() == [math.inf, 0.0]
    assert sfpu("sqrt", x[2:3]).isnan().all()
    assert sfpu("log", x[:2]).tolist() == [-math.inf, math.inf]
    assert sfpu("exp", torch.tensor([-200.0, 200.0])).tolist() == [0.0, math.inf]


def test_choices_are_checked():
    with pytest.raises(UserError, match="function 'tan' does not exist; choose one of cos"):
        sfpu("tan", torch.zeros(1))
