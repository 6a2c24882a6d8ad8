"""Sine and cosine on the vector unit.

    sin    x - j pi, j = round(x / pi), pi in four parts --> a + a^3 polynomial(a^2) --> sign of an odd j
    cos    the same of x - (2 j - 1) pi / 2, j = round(x / pi + 1 / 2)

Source of algorithms and coefficients: tt-metal's `ckernel_sfpu_trigonometry.h` in the wheel of ttnn 0.81.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.numerics.formats import bits_of
from refsim.numerics.vector_unit import VectorUnit

_WHOLE = 12582912.0
"""1.5 . 2^23: what is added to it is rounded to an integer, the last bits of the sum."""
_RECIPROCAL_OF_PI = 0.31830987334251404
_MINUS_PI = tuple(float.fromhex(part) for part in ("-0x1.92p+1", "-0x1.fbp-11", "-0x1.51p-21", "-0x1.0b4612p-33"))
_SINE = {
    True: ("-0x1.55554cp-3", "0x1.110edap-7", "-0x1.9f70fp-13", "0x1.5dc908p-19"),
    False: ("-0x1.5554a4p-3", "0x1.10c2a2p-7", "-0x1.8b10a4p-13"),
}
"""(sin a - a) / a^3 in powers of a^2 up to pi / 2, by whether the destination has 32 bits."""


def sine(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return sin x, rounded; past 2^22 pi nothing is left of it."""
    shifted = unit.mad(x, _RECIPROCAL_OF_PI, _WHOLE)
    return _of_rest(unit, x, shifted, unit.add(shifted, -_WHOLE), _MINUS_PI)


def cosine(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return cos x, rounded."""
    shifted = unit.add(unit.mad(x, _RECIPROCAL_OF_PI, 0.5), _WHOLE)
    odd = unit.mad(unit.add(shifted, -_WHOLE), 2.0, -1.0)
    return _of_rest(unit, x, shifted, odd, tuple(part / 2 for part in _MINUS_PI))


def _of_rest(unit: VectorUnit, x: Tensor, shifted: Tensor, count: Tensor, parts: tuple[float, ...]) -> Tensor:
    rest = x
    for part in parts:
        rest = unit.mad(count, part, rest)
    square = unit.mul(rest, rest)
    rest = torch.where(bits_of(shifted) & 1 == 1, -rest, rest)
    coefficients = tuple(float.fromhex(number) for number in _SINE[unit.wide])
    return unit.stored(unit.mad(unit.polynomial(square, coefficients), unit.mul(rest, square), rest))
