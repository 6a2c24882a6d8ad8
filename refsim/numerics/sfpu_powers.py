"""Powers on the vector unit.

    exponent 0, 1, 2, 3        products of x; none is rounded between, a 16-bit destination cuts the last
    16-bit destination         |x| = m 2^e --> p (e + cubic(m) / ln 2) --> 2^ of it, quadratic in its fraction
    32-bit destination         z = (m - 1) / (m + 1), m from sqrt(1/2) to sqrt(2) --> ln m = 2 (z + z^3 / 3 + ...)
                               p e + p ln m / ln 2, a sum of two --> nearest whole k, rest r --> 2^k e^(r ln 2)

Source of algorithms and coefficients: tt-metal's `ckernel_sfpu_unary_power.h` and `_binary_pow.h` in the wheel of ttnn
0.81.1; the quadratic is Moroz et al., 2022.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.numerics.formats import truncate
from refsim.numerics.sfpu_exponentials import exp_wide, fixed_point
from refsim.numerics.vector_unit import VectorUnit, exponent_of, with_exponent

_PER_LN2 = 1.4426950408889634
_LN_CUBIC = tuple(
    float.fromhex(number) for number in ("-0x1.952992p+0", "0x2.4f5388p+0", "-0xd.e712ap-4", "0x2.44734p-4")
)
"""ln m of a mantissa from 1 to 2."""
_ATANH = (1.0, 1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11)
_GUESS = (1.003, -0.244)
_GUESS_OF_TENSORS = (1.0, -0.2426406871192851)
"""1 / (m + 1), before three corrections; where the exponent is a tensor the kernel has another line."""
_TAYLOR = (1.0, 1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040)
_SPLIT = 4097.0
"""2^12 + 1: a number times it and back is its upper half, exactly."""


def whole_power(unit: VectorUnit, x: Tensor, exponent: int) -> Tensor:
    """Return x to the power 0, 1, 2 or 3."""
    value = torch.ones_like(x) if exponent == 0 else x
    for _ in range(exponent - 1):
        value = unit.mul(value, x)
    return value if unit.wide else truncate(value, 7)


def power(unit: VectorUnit, x: Tensor, exponent: Tensor, *, of_tensor: bool) -> Tensor:
    """Return x ** exponent: NaN of a negative x whose exponent is no integer.

    Args:
        unit: the arithmetic.
        x: float32.
        exponent: float32 of the same shape.
        of_tensor: the kernel of two tensors; that of a number gives NaN for negative powers of zero.
    """
    value = _power_wide(unit, x, exponent, of_tensor) if unit.wide else _power_narrow(unit, x, exponent)
    whole = torch.round(exponent)
    value = torch.where((x < 0) & (whole.remainder(2) == 1), -value, value)
    value = torch.where((x < 0) & (whole != exponent), torch.nan, value)
    of_zero = torch.where(exponent > 0, 0.0, torch.inf if unit.wide and of_tensor else torch.nan)
    value = torch.where((x == 0) & (exponent != 0), of_zero, value)
    return unit.stored(value)


def _power_narrow(unit: VectorUnit, x: Tensor, exponent: Tensor) -> Tensor:
    """Return |x| ** exponent to about 2e-3."""
    mantissa = with_exponent(x.abs(), torch.full_like(exponent_of(x), 127))
    binary = unit.mad(unit.polynomial(mantissa, _LN_CUBIC), _PER_LN2, (exponent_of(x) - 127).to(torch.float32))
    biased = unit.add(unit.mul(exponent, binary).clamp(min=-127.0), 127.0)
    fixed = fixed_point(biased.clamp(max=255.0))
    fraction = fixed & 0x7FFFFF
    first = unit.mul((fraction + 0xF94EE7).to(torch.float32), 0.40196114e-7)
    scaled = unit.mul(first, (fraction + 0x560E).to(torch.float32)).to(torch.int32)
    value = with_exponent(scaled.view(torch.float32), fixed >> 23 & 0xFF)
    return torch.where(biased >= 255.0, torch.inf, value)


def _power_wide(unit: VectorUnit, x: Tensor, exponent: Tensor, of_tensor: bool) -> Tensor:
    """Return |x| ** exponent to a few last places of float32."""
    mantissa = with_exponent(x.abs(), torch.full_like(exponent_of(x), 127))
    upper = mantissa >= 1.4142135381698608
    mantissa = torch.where(upper, mantissa * 0.5, mantissa)
    binary = (exponent_of(x) - 127 + upper.to(torch.int32)).to(torch.float32)
    logarithm = _ln(unit, mantissa, _GUESS_OF_TENSORS if of_tensor else _GUESS)
    shifted = unit.mul(exponent, _SPLIT)
    high = unit.add(shifted, -unit.add(shifted, -exponent))
    low = unit.add(exponent, -high)
    # high * binary is exact: 12 bits times 8.
    first = unit.mul(high, binary)
    second = unit.mad(low, binary, unit.mul(exponent, unit.mul(logarithm, _PER_LN2)))
    total = unit.add(first, second)
    rest = unit.add(second, -unit.add(total, -first))
    rest = torch.where((total < -127.0) & of_tensor, 0.0, rest)
    total = total.clamp(min=-127.0 if of_tensor else -126.99999237060547)
    whole = torch.round(total)
    fraction = unit.add(unit.add(total, -whole), rest)
    value = exp_wide(unit, unit.mul(fraction, 0.6931471805599453)) if of_tensor else _exp2_taylor(unit, fraction)
    biased = exponent_of(value) + whole.to(torch.int32)
    return torch.where(biased >= 255, torch.inf, with_exponent(value, biased.clamp(0, 254)))


def _ln(unit: VectorUnit, mantissa: Tensor, guess: tuple[float, float]) -> Tensor:
    one_more = unit.add(mantissa, 1.0)
    inverse = unit.polynomial(one_more, guess)
    for _ in range(3):
        inverse = unit.mul(inverse, unit.mad(-one_more, inverse, 2.0))
    ratio = unit.mul(unit.add(mantissa, -1.0), inverse)
    return unit.mul(unit.mul(ratio, unit.polynomial(unit.mul(ratio, ratio), _ATANH)), 2.0)


def _exp2_taylor(unit: VectorUnit, fraction: Tensor) -> Tensor:
    low = unit.mul(fraction, -2.12194440e-4)
    return unit.polynomial(unit.mad(fraction, 0.693359375, low), _TAYLOR)
