"""GELU on the vector unit: exact, by tanh, and of six lines; the error function.

    16-bit destination    to -5.54: 0 | to -3.125: x times a tail | to 2.78: x (1/2 + odd polynomial) | then x
    32-bit destination    x (1/2 + 1/2 erf), erf = odd polynomial / even polynomial
    approximate           x / 2 + six lines of |x|

Source of algorithms and coefficients: tt-metal's `ckernel_sfpu_gelu.h` and `_erf.h` in the wheel of ttnn 0.81.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.numerics.sfpu_exponentials import SIX_SEGMENTS, _cut, _tanh_wide, exp2_of_biased
from refsim.numerics.sfpu_roots import reciprocal_steps
from refsim.numerics.vector_unit import VectorUnit, piecewise_linear

_SATURATED = -5.54259443
_CORE = (
    3.9894227818e-01,
    -6.6361041488e-02,
    9.7720050615e-03,
    -1.0717806322e-03,
    8.1812159812e-05,
    -3.8082057209e-06,
    7.9821413868e-08,
)
"""(Phi(x) - 1/2) / x in powers of x^2."""
_TAIL = (3.0369991064e-01, 9.5413386822e-02, 1.3809983619e-02, 7.5950479368e-04)
"""Phi(x) e^(x^2 / 2) of negative x, in powers of x."""
_ERF_ODD = (
    1.1283791065e00,
    2.1477432549e-01,
    6.2133435160e-02,
    5.6230435148e-03,
    6.1307044234e-04,
    1.7678321456e-05,
    2.7384647439e-08,
    -2.8632063387e-10,
)
_ERF_EVEN = (
    1.0,
    5.2367275953e-01,
    1.2961706519e-01,
    1.9642570987e-02,
    1.9545555115e-03,
    1.3179056987e-04,
    1.3156344494e-06,
    -3.5153888689e-09,
    -6.7350725691e-12,
)
_ERF_ODD_OF_16_BITS = (1.1280932447e00, 2.7609212279e-01, 4.5400281738e-02, 7.4481184425e-04)
_ERF_EVEN_OF_16_BITS = (1.0, 5.7439188334e-01, 1.3675764810e-01, 8.2844606784e-03, 2.4813862145e-05)


def gelu(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return x Phi(x), rounded."""
    return unit.stored(_wide(unit, x) if unit.wide else _narrow(unit, x))


def _narrow(unit: VectorUnit, x: Tensor) -> Tensor:
    square = unit.mul(x, x)
    power = exp2_of_biased(unit, unit.mad(square, -0.72134752044, 127.0).clamp(0.0, 255.0))
    tail = unit.mul(power, unit.polynomial(x, _TAIL))
    tail = unit.add(unit.add(tail, 0.375), -0.375)
    core = unit.mad(x, unit.polynomial(square, _CORE), 0.5)
    value = unit.mul(x, torch.where(x >= -3.125, core, tail))
    value = torch.where(x >= 2.78125, x, value)
    return torch.where(x > _SATURATED, value, 0.0)


def _wide(unit: VectorUnit, x: Tensor) -> Tensor:
    error_function = _erf(unit, unit.mul(x, 0.7071067811865475), 2)
    value = unit.mul(x, unit.mad(error_function, 0.5, 0.5))
    value = torch.where(error_function == -1.0, unit.mul(x, 2.0**-25), value)
    return torch.where(x > _SATURATED, value, 0.0)


def erf(unit: VectorUnit, x: Tensor, *, approximate: bool = False) -> Tensor:
    """Return erf x; a 16-bit destination has polynomials of its own and cuts."""
    return _cut(unit, _erf(unit, x, 0 if approximate else 2))


def _erf(unit: VectorUnit, x: Tensor, steps: int) -> Tensor:
    odd, even = (_ERF_ODD, _ERF_EVEN) if unit.wide else (_ERF_ODD_OF_16_BITS, _ERF_EVEN_OF_16_BITS)
    x = x.clamp(-10.0, 10.0)
    square = unit.mul(x, x)
    numerator = unit.mul(unit.polynomial(square, odd), x)
    value = unit.mul(numerator, reciprocal_steps(unit, unit.polynomial(square, even), steps))
    return value.clamp(-1.0, 1.0)


def gelu_tanh(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), rounded once."""
    inner = unit.mul(x, unit.mad(unit.mul(x, x), 0.044715, 1.0))
    half = unit.mul(x, 0.5)
    return unit.stored(unit.mad(half, _tanh_wide(unit, unit.mul(inner, 0.7978845608028654)), half))


def gelu_approximate(unit: VectorUnit, x: Tensor) -> Tensor:
    """Return x / 2 plus six lines of |x|; a 16-bit destination cuts it."""
    lines = (
        (0.1928, -0.00010443),
        (0.4939, -0.1604),
        (0.6188, -0.2796),
        (0.6099, -0.2635),
        (0.5402, -0.1194),
        (0.5, 0.0),
    )
    halves = tuple(tuple(torch.tensor(number).half().item() for number in line) for line in lines)
    value = unit.add(unit.mul(x, 0.5), piecewise_linear(unit, x, SIX_SEGMENTS, halves))
    return _cut(unit, value)
