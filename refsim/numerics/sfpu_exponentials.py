"""Exponentials of the vector unit and what is made of them: sigmoid, SiLU, Mish, tanh.

    exp, 16-bit destination    x / ln 2 + 127 in units of 2^-23 --> exponent | fraction --> quadratic in it
    exp, 32-bit destination    x = i ln 2 + f --> polynomial of degree 6 in f --> exponent raised by i
    exp, approximate           256 / ln 2 x + 32500.818 as 16-bit integer, shifted into the exponent (Schraudolph)

Source of algorithms and coefficients: tt-metal's `ckernel_sfpu_exp.h`, `_sigmoid.h`, `_silu.h`, `_mish.h`, `_tanh.h`
in the wheel of ttnn 0.81.1; exp of 16 bits is Moroz et al., 2022, of 32 bits N. Juffa's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.numerics.formats import bits_of, from_bits
from refsim.numerics.sfpu_roots import reciprocal_steps
from refsim.numerics.vector_unit import VectorUnit, exponent_of, piecewise_linear, with_exponent, with_sign_of

_LN2_RECIPROCAL = 1.4426950216293335
EXP2_FRACTION = (1.0017248, 7.839635491371155e-08, 4.791750143340323e-15)
"""2^(n / 2^23) of a fraction n below 2^23."""


def exp(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return e^x as an accurate exponential of this destination computes it."""
    return unit.stored(exp_wide(unit, x) if unit.wide else exp_by_quadratic(unit, x))


def exp2_of_biased(unit: VectorUnit, biased: Tensor, fraction: tuple[float, ...] = EXP2_FRACTION) -> Tensor:
    """Return 2^(biased - 127) of values from 0 to 255."""
    fixed = fixed_point(biased)
    scaled = unit.polynomial((fixed & 0x7FFFFF).to(torch.float32), fraction)
    return with_exponent(scaled, fixed >> 23 & 0xFF)


def fixed_point(x: Tensor) -> Tensor:
    """Return values from 0 to 255 in units of 2^-23, int32, cut."""
    exponent = exponent_of(x) - 127
    mantissa = bits_of(x) & 0x7FFFFF | 0x800000
    return torch.where(exponent >= 0, mantissa << exponent.clamp(min=0), mantissa >> (-exponent).clamp(0, 31))


def exp_by_quadratic(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return e^x to about 2e-3, unrounded: the accurate exponential of a 16-bit destination."""
    return exp2_of_biased(unit, unit.mad(x, _LN2_RECIPROCAL, 127.0).clamp(0.0, 255.0))


def exp_wide(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return e^x to one last place of float32."""
    whole = torch.round(unit.mul(x, 1.442695)).clamp(-32767, 32767)
    rest = unit.mad(whole, -6.93145752e-1, x)
    rest = unit.mad(whole, -1.42860677e-6, rest)
    coefficients = (1.0, 1.0, 4.99999851e-1, 1.66664720e-1, 4.16695364e-2, 8.37312452e-3, 1.37805939e-3)
    value = unit.polynomial(rest, coefficients)
    exponent = exponent_of(value) + whole.to(torch.int32)
    scaled = with_exponent(value, exponent.clamp(1, 254))
    scaled = torch.where(exponent >= 255, torch.inf, scaled)
    return torch.where(x.isnan(), torch.nan, torch.where(exponent < 1, 0.0, scaled))


def exp_approximate(unit: VectorUnit, x: Tensor, scale: float = 1.0) -> Tensor:
    """Return e^(scale x) by Schraudolph's method, to about 3 %; below -88.5 it is that of -88.5.

    A 16-bit destination cuts it, nothing rounds.
    """
    factor, limit = schraudolph(scale)
    fixed = unit.mad(x.clamp(min=limit), factor, 32500.818359375)
    integer = torch.floor(fixed + 0.5).clamp(0, 65280).to(torch.int32)
    bits = integer << 15
    return from_bits(bits if unit.wide else bits & -0x10000)


def schraudolph(scale: float) -> tuple[float, float]:
    """Return what x is multiplied by, and the least x that counts."""
    return (
        torch.tensor(256 * 1.4426950408889634 * scale, dtype=torch.float32).item(),
        torch.tensor(-88.5 / scale, dtype=torch.float32).item(),
    )


def sigmoid(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return 1 / (1 + e^-x), rounded."""
    return unit.stored(_sigmoid(unit, x))


def silu(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return x sigmoid(x), rounded once."""
    return unit.stored(unit.mul(x, _sigmoid(unit, x)))


def _sigmoid(unit: VectorUnit, x: Tensor) -> Tensor:
    power = exp_wide(unit, -x) if unit.wide else exp_by_quadratic(unit, -x)
    return reciprocal_steps(unit, unit.add(power, 1.0), 2 if unit.wide else 1)


def mish(unit: VectorUnit, x: Tensor, *, approximate: bool = False) -> Tensor:
    """Return x tanh(ln(1 + e^x)) = x u (u + 2) / (u^2 + 2 u + 2) with u = e^x, rounded; from 8 on x."""
    power = exp_by_quadratic(unit, x) if approximate or not unit.wide else exp_wide(unit, x)
    power = unit.stored(power)
    one_more = unit.add(power, 1.0)
    inverse = reciprocal_steps(unit, unit.mad(one_more, one_more, 1.0), 0 if approximate else 2 if unit.wide else 1)
    value = unit.mul(x, unit.mul(unit.mul(power, unit.add(power, 2.0)), inverse))
    if unit.arch == "blackhole":  # whose first guess is a table of 8 bits
        value = torch.where(x < 0, value, unit.mul(x, unit.mad(inverse, -2.0, 1.0)))
    return unit.stored(torch.where(x < 8.0, value, x))


def sigmoid_approximate(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return a sigmoid of three lines on each side."""
    lines = ((0.2265625, 0.0), (0.265625, -0.046875), (0.0, 0.5))
    half = with_sign_of(piecewise_linear(unit, x, (1.0, 2.0), lines), x)
    return _cut(unit, unit.add(half, 0.5))


def tanh(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return tanh: an odd polynomial in a 16-bit destination, (e^2x - 1) / (e^2x + 1) in one of 32 bits."""
    if unit.wide:
        return unit.stored(_tanh_wide(unit, x))
    coefficients = (
        0.0,
        0.999004364013671875,
        3.0897438526153564453125e-2,
        -0.4890659749507904052734375,
        0.281917631626129150390625,
        -6.6649019718170166015625e-2,
        5.876733921468257904052734375e-3,
    )
    return unit.stored(with_sign_of(unit.polynomial(x.abs(), coefficients).clamp(max=1.0), x))


def _tanh_wide(unit: VectorUnit, x: Tensor) -> Tensor:
    whole = torch.floor(unit.mul(x, 2 * 1.442695).abs() + 0.5).clamp(max=255.0)
    rest = unit.mad(whole, -0.6931471805599453, (x + x).abs())
    inner = unit.polynomial(
        rest, (0.5, 1.666667163e-1, 4.166680202e-2, 8.331298828e-3, 1.393318176e-3, 1.974105835e-04)
    )
    minus_one = unit.mad(inner, unit.mul(rest, rest), rest)
    scale = with_exponent(torch.zeros_like(x), (whole.to(torch.int32) + 126).clamp(max=254))
    low = unit.mad(minus_one, scale, unit.add(scale, -0.5))
    high = unit.add(low, 1.0)
    # a negative reciprocal from a seed, corrected twice, then the ratio's own remainder
    seed = from_bits((0xFEF30000 - 0x100000000) - bits_of(high))
    error = unit.mad(high, seed, 1.0)
    negative = unit.mad(seed, unit.mad(error, error, error), seed)
    ratio = unit.mul(low, negative)
    ratio = unit.mad(unit.mad(high, ratio, low), negative, ratio)
    value = torch.where(exponent_of(x) >= 115, ratio, x)
    return with_sign_of(torch.where(whole < 61, value, 1.0), x)


def tanh_approximate(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return a tanh of six lines on each side."""
    lines = (
        (0.96191406, 0.0),
        (0.57617188, 0.192871094),
        (0.28710938, 0.48193359),
        (0.0964355469, 0.76806641),
        (0.0390625, 0.8828125),
        (0.0, 1.0),
    )
    return _cut(unit, with_sign_of(piecewise_linear(unit, x, SIX_SEGMENTS, lines), x))


SIX_SEGMENTS = (0.5, 1.0, 1.5, 2.0, 3.0)
"""Where the table instruction's second to sixth segment begin."""


def _cut(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return what a store leaves of a value that no function rounded."""
    return x if unit.wide else from_bits(bits_of(x) & -0x10000)
