"""Reciprocal, quotient, square root, its reciprocal and the logarithm on the vector unit.

    1 / x          Wormhole: quadratic seed on the mantissa | Blackhole: a table of 8 bits --> Newton's steps
    x / y          16 bits: x times 1 / y | 32 bits: mantissas by a reciprocal, then what is left of x by it once more
    1 / sqrt(x)    a constant less half the bits is the seed --> a correction of degree 2, one of degree 1
    ln x           x = 2^e m, m from 0.75 to 1.5 --> polynomial in m - 1 --> + e ln 2

Source of algorithms and coefficients: tt-metal's `ckernel_sfpu_recip.h`, `_binary.h`, `_sqrt.h` and `_log.h` in the
wheel of ttnn 0.81.1 (sqrt: Kokosinski et al., log: N. Juffa).
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.numerics.formats import bits_of, from_bits, round_ties_away
from refsim.numerics.vector_unit import VectorUnit, exponent_of, with_exponent, with_sign_of

_SEED = (2.121212482452392578125, -1.4545459747314453125, 0.3232325017452239990234375)
"""1 / m of m from 1 to 2, quadratic, with the least error."""
_SEED_OF_16_BITS = (2.1200883388519287109375, -1.4514148235321044921875, 0.32133400440216064453125)
"""The same, fitted so that one step rounds every bf16 value rightly."""


def reciprocal(unit: VectorUnit, x: Tensor, *, approximate: bool = False) -> Tensor:
    """Return 1 / x: two steps in a 32-bit destination, one in one of 16 bits and when approximate."""
    if approximate:
        value = reciprocal_steps(unit, x, 1 if unit.arch == "wormhole_b0" else 0)
        return value if unit.wide else from_bits(bits_of(value) & -0x10000)
    if unit.wide:
        return unit.stored(reciprocal_steps(unit, x, 2))
    return unit.stored(reciprocal_steps(unit, x, 1, seed=_SEED_OF_16_BITS))


def reciprocal_steps(unit: VectorUnit, x: Tensor, steps: int, seed: tuple[float, ...] = _SEED) -> Tensor:
    """Return 1 / x after Newton's steps from the seed of the chip, unrounded; 1 / 0 is infinity, 1 / infinity 0."""
    mantissa = with_exponent(x.abs(), torch.full_like(exponent_of(x), 127))
    if unit.arch == "wormhole_b0":
        value = unit.polynomial(mantissa, seed)
    else:
        value = torch.floor(256 / (mantissa.double().mul(128).floor() / 128 + 1 / 256) + 0.5).float() / 256
    for _ in range(steps):
        value = unit.mad(value, unit.mad(-mantissa, value, 1.0), value)
    if not unit.wide and seed is _SEED_OF_16_BITS:
        value = round_ties_away(value, 7)
    exponent = exponent_of(x)
    power = with_exponent(torch.zeros_like(x), (254 - exponent).clamp(0, 254))
    # the exponent 254 of x leaves none: a value just below 1 is multiplied by a power that is no denormal
    value = torch.where(exponent == 254, value * 2.0**-127, unit.mul(value, power))
    value = torch.where(exponent == 0, torch.inf, torch.where(exponent == 255, 0.0, value))
    return with_sign_of(value, x)


def quotient(unit: VectorUnit, x: Tensor, y: Tensor) -> Tensor:
    """Return x / y of tensors of one shape, rounded to nearest, ties to even in a 16-bit destination.

    A 16-bit destination takes x times the reciprocal after two steps; one of 32 bits a reciprocal of the mantissas
    after one, whose quotient is corrected by what is left (source: `ckernel_sfpu_binary.h` of the wheel).
    """
    if not unit.wide:
        value = unit.stored_to_even(unit.mul(x, reciprocal_steps(unit, y, 2)))
        infinite = with_sign_of(torch.full_like(x, torch.inf), x)
        return torch.where(y == 0, torch.where(x == 0, torch.nan, infinite), value)
    one = torch.full_like(exponent_of(x), 127)
    x_mantissa = with_exponent(x, one)
    y_mantissa = with_exponent(y, one)
    inverse = reciprocal_steps(unit, y_mantissa, 1)
    value = unit.mul(x_mantissa, inverse)
    value = unit.mad(unit.mad(value, -y_mantissa, x_mantissa), inverse, value)
    # powers of two in two factors, none of which is beyond float32
    power = exponent_of(x) - exponent_of(y)
    half = power >> 1
    value = unit.mul(torch.ldexp(value, half), torch.ldexp(torch.ones_like(value), power - half))
    normal = _is_normal(x) & _is_normal(y)
    return unit.stored(torch.where(normal, value, x / y))


def _is_normal(x: Tensor) -> Tensor:
    exponent = exponent_of(x)
    return (exponent > 0) & (exponent < 255)


def reciprocal_root(unit: VectorUnit, x: Tensor, *, approximate: bool = False) -> Tensor:
    """Return 1 / sqrt(x), rounded; of a negative number NaN, of 0 infinity."""
    value, root = _seeded(unit, x, approximate)
    if not approximate:
        rest = unit.mad(-value, root, 1.0)
        value = unit.mad(rest, 0.5 * value, value)
    value = torch.where(x < 0, torch.nan, torch.where(x == 0, torch.inf, torch.where(x.isinf(), 0.0, value)))
    return unit.stored(value)


def root(unit: VectorUnit, x: Tensor, *, approximate: bool = False) -> Tensor:
    """Return sqrt(x), rounded; of a negative number NaN."""
    value, root = _seeded(unit, x, approximate)
    if not approximate:
        root = unit.mad(unit.mad(-value, root, 1.0), unit.mul(root, 0.5), root)
    value = torch.where(x < 0, torch.nan, torch.where((x == 0) | x.isinf(), x, root))
    return unit.stored(value)


def _seeded(unit: VectorUnit, x: Tensor, approximate: bool) -> tuple[Tensor, Tensor]:
    """Return 1 / sqrt(x) and sqrt(x) after the first correction."""
    half = bits_of(x) >> 1 & 0x7FFFFFFF
    if approximate:
        value = from_bits(0x5F0B3892 - half)
        root = unit.mul(x, value)
        factor = unit.mad(-value, root, 1.89099014875)
        return unit.mul(value, factor), unit.mul(root, factor)
    value = from_bits(0x5F1110A0 - half)
    square = unit.mul(-value, unit.mul(x, value))
    factor = unit.mad(square, unit.add(square, 2.2533049), 2.2825186)
    value = unit.mul(value, factor)
    return value, unit.mul(x, value)


_LOG_WIDE = (1.0, -0.5)
_LOG_WIDE_TAIL = tuple(
    float.fromhex(text)
    for text in (
        "0x1.555572p-2",
        "-0x1.00001ap-2",
        "0x1.998p-3",
        "-0x1.55p-3",
        "0x1.274p-3",
        "-0x1.0c4p-3",
        "0x1.b84p-4",
        "-0x1.92cp-5",
    )
)
_LOG_NARROW = (float.fromhex("-0x1.008p-1"), float.fromhex("0x1.744p-2"), -0.25)


def log(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return ln x, rounded; of 0 minus infinity, of a negative number NaN."""
    x = torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0.0, x)
    power = (bits_of(x) - 0x3F400000) & -0x800000
    rest = unit.add(from_bits(bits_of(x) - power), -1.0)
    if unit.wide:
        inner = unit.mad(unit.polynomial(rest, _LOG_WIDE_TAIL), rest, -0.5)
    else:
        inner = unit.polynomial(rest, _LOG_NARROW)
    value = unit.mad(inner, unit.mul(rest, rest), rest)
    value = unit.mad((power >> 23).to(torch.float32), 0.693147182, value)
    value = torch.where(x == 0, -torch.inf, torch.where(x < 0, torch.nan, torch.where(x.isinf(), x, value)))
    return unit.stored(value)
