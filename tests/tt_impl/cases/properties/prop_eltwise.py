"""Elementwise operations of one tensor against formulas, over dtypes, shapes and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import agree, choose, held, hold, numbers, on_mesh, shape_of

WIDE, POSITIVE, UNIT, ABOVE_ONE = (-6.0, 6.0), (0.1, 8.0), (-0.95, 0.95), (1.1, 9.0)
SOFTPLUS = {"beta": 0.5, "threshold": 1.0}


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def _normal(x: Tensor) -> Tensor:
    """Distribution function of the normal distribution."""
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _exponential(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 0, x, alpha * (x.clamp(max=0).exp() - 1))


def _polygamma_1(x: Tensor) -> Tensor:
    """sum over n of 1 / (x + n)^2, with the remainder of the sum as an integral."""
    terms = sum(1 / (x + n) ** 2 for n in range(200))
    return terms + 1 / (x + 199.5)


def _bessel(x: Tensor, order: int) -> Tensor:
    """Power series of the modified Bessel function."""
    half = x / 2
    return sum(half ** (2 * k + order) / float(math.factorial(k) * math.factorial(k + order)) for k in range(30))


def _cut(x: Tensor, keep: Callable[[int, int], bool]) -> Tensor:
    mask = torch.tensor([[keep(i, j) for j in range(x.shape[-1])] for i in range(x.shape[-2])])
    return torch.where(mask, x, torch.zeros_like(x))


Formula = Callable[..., Tensor]


def _logit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """The logarithm of x / (1 - x), all of it in bfloat16."""
    low = torch.tensor(eps).bfloat16()
    bounded = x.bfloat16().clamp(low, 1 - low)
    return (bounded / (1 - bounded)).float().log()


ONE: dict[str, tuple[Formula, tuple[float, float], dict[str, Any]]] = {
    "abs": (lambda x: torch.where(x < 0, -x, x), WIDE, {}),
    "acos": (lambda x: math.pi / 2 - torch.atan2(x, (1 - x * x).sqrt()), UNIT, {}),
    "acosh": (lambda x: (x + (x * x - 1).sqrt()).log(), ABOVE_ONE, {}),
    "asin": (lambda x: torch.atan2(x, (1 - x * x).sqrt()), UNIT, {}),
    "asinh": (lambda x: (x + (x * x + 1).sqrt()).log(), WIDE, {}),
    "atan": (lambda x: torch.atan2(x, torch.ones_like(x)), WIDE, {}),
    "atanh": (lambda x: 0.5 * ((1 + x) / (1 - x)).log(), UNIT, {}),
    "cbrt": (lambda x: torch.where(x < 0, -((-x) ** (1 / 3)), x ** (1 / 3)), WIDE, {}),
    "ceil": (lambda x: -torch.floor(-x), WIDE, {}),
    "celu": (
        lambda x, alpha: torch.where(x > 0, x, alpha * ((x / alpha).clamp(max=0).exp() - 1)),
        WIDE,
        {"alpha": 0.7},
    ),
    "clamp": (
        lambda x, min, max: torch.where(x < min, min, torch.where(x > max, max, x)),
        WIDE,
        {"min": -1.5, "max": 2.0},
    ),
    "clip": (lambda x, min: torch.where(x < min, min, x), WIDE, {"min": -1.5}),
    "cos": (lambda x: torch.sin(x + math.pi / 2), WIDE, {}),
    "cosh": (lambda x: (x.exp() + (-x).exp()) / 2, WIDE, {}),
    "deg2rad": (lambda x: x * math.pi / 180, (-400, 400), {}),
    "digamma": (lambda x: (torch.lgamma(x + 1e-4) - torch.lgamma(x - 1e-4)) / 2e-4, (2.0, 9.0), {}),
    "elu": (_exponential, WIDE, {"alpha": 1.3}),
    "eqz": (lambda x: torch.where(x == 0, 1.0, 0.0), (-1, 1), {}),
    "erf": (lambda x: 2 * _normal(x * math.sqrt(2)) - 1, WIDE, {}),
    "erfc": (lambda x: 2 - 2 * _normal(x * math.sqrt(2)), (-3, 1), {}),
    "erfinv": (lambda x: torch.special.ndtri((x + 1) / 2) / math.sqrt(2), UNIT, {}),
    "exp": (lambda x: math.e**x, WIDE, {}),
    "exp2": (lambda x: 2.0**x, WIDE, {}),
    "expm1": (lambda x: x.exp() - 1, WIDE, {}),
    "fill": (lambda x, fill_value: torch.ones_like(x) * fill_value, WIDE, {"fill_value": 2.5}),
    "floor": (lambda x: -torch.ceil(-x), WIDE, {}),
    "frac": (lambda x: torch.where(x < 0, -((-x) % 1), x % 1), WIDE, {}),
    "gelu": (lambda x: x * _normal(x), (-2, 6), {}),
    "gez": (lambda x: torch.where(x < 0, 0.0, 1.0), WIDE, {}),
    "gtz": (lambda x: torch.where(x > 0, 1.0, 0.0), WIDE, {}),
    "hardmish": (lambda x: x * torch.where(x > 0, 2.0, torch.where(x < -2, 0.0, x + 2)) / 2, WIDE, {}),
    "hardshrink": (lambda x, lambd: torch.where(x.abs() > lambd, x, 0.0), WIDE, {"lambd": 0.75}),
    "hardsigmoid": (lambda x: torch.where(x > 3, 1.0, torch.where(x < -3, 0.0, x / 6 + 0.5)), WIDE, {}),
    "hardswish": (lambda x: x * torch.where(x > 3, 1.0, torch.where(x < -3, 0.0, x / 6 + 0.5)), WIDE, {}),
    "hardtanh": (
        lambda x, min_val, max_val: torch.where(x > max_val, max_val, torch.where(x < min_val, min_val, x)),
        WIDE,
        {"min_val": -2.0, "max_val": 0.5},
    ),
    "heaviside": (lambda x, value: torch.where(x == 0, value, torch.where(x < 0, 0.0, 1.0)), WIDE, {"value": 0.5}),
    "i0": (lambda x: _bessel(x, 0), WIDE, {}),
    "i1": (lambda x: _bessel(x, 1), WIDE, {}),
    "identity": (lambda x: x, WIDE, {}),
    "leaky_relu": (
        lambda x, negative_slope: x.clamp(min=0) + negative_slope * x.clamp(max=0),
        WIDE,
        {"negative_slope": 0.2},
    ),
    "lez": (lambda x: torch.where(x > 0, 0.0, 1.0), WIDE, {}),
    "lgamma": (lambda x: torch.special.gammaln(x + 1) - x.log(), (2.5, 9.0), {}),
    "log": (lambda x: x.log2() * math.log(2), POSITIVE, {}),
    "log10": (lambda x: x.log() / math.log(10), POSITIVE, {}),
    "log1p": (lambda x: (1 + x).log(), POSITIVE, {}),
    "log2": (lambda x: x.log() / math.log(2), POSITIVE, {}),
    "log_sigmoid": (lambda x: _sigmoid(x).log(), (-6, 2), {}),
    "logical_not": (lambda x: torch.where(x == 0, 1.0, 0.0), WIDE, {}),
    "logit": (_logit, (0.0, 1.0), {"eps": 0.1}),
    "ltz": (lambda x: torch.where(x < 0, 1.0, 0.0), WIDE, {}),
    "mish": (lambda x: x * torch.tanh((1 + x.exp()).log()), WIDE, {}),
    "multigammaln": (lambda x: 3 * math.log(math.pi) + sum(torch.lgamma(x - j / 2) for j in range(4)), (3.0, 9.0), {}),
    "neg": (lambda x: 0 - x, WIDE, {}),
    "nez": (lambda x: torch.where(x == 0, 0.0, 1.0), WIDE, {}),
    "polygamma": (lambda x, k: _polygamma_1(x), (1.0, 9.0), {"k": 1}),
    "prelu": (lambda x, weight: torch.where(x < 0, weight * x, x), WIDE, {"weight": 0.3}),
    "rad2deg": (lambda x: x / math.pi * 180, WIDE, {}),
    "rdiv": (lambda x, value: value / x, POSITIVE, {"value": 3.0}),
    "reciprocal": (lambda x: x**-1.0, POSITIVE, {}),
    "relu": (lambda x: torch.where(x > 0, x, 0.0), WIDE, {}),
    "relu6": (lambda x: torch.where(x > 6, 6.0, torch.where(x > 0, x, 0.0)), (-9, 9), {}),
    "relu_max": (lambda x, upper_limit: x.clamp(min=0).clamp(max=upper_limit), WIDE, {"upper_limit": 2.5}),
    "relu_min": (lambda x, lower_limit: torch.where(x > lower_limit, x, lower_limit), WIDE, {"lower_limit": -1.5}),
    "round": (lambda x, decimals: torch.round(x * 10.0**decimals) / 10.0**decimals, WIDE, {"decimals": 1}),
    "rpow": (lambda x, exponent: (x * math.log(exponent)).exp(), WIDE, {"exponent": 2.5}),
    "rsqrt": (lambda x: x**-0.5, POSITIVE, {}),
    "selu": (lambda x: 1.0507009873554805 * _exponential(x, 1.6732632423543772), WIDE, {}),
    "sigmoid": (_sigmoid, WIDE, {}),
    "sigmoid_accurate": (_sigmoid, WIDE, {}),
    "sign": (lambda x: (x > 0).double() - (x < 0).double(), WIDE, {}),
    "signbit": (lambda x: torch.where(x < 0, 1.0, 0.0), WIDE, {}),
    "silu": (lambda x: x * _sigmoid(x), WIDE, {}),
    "sin": (lambda x: torch.cos(x - math.pi / 2), WIDE, {}),
    "sinh": (lambda x: (x.exp() - (-x).exp()) / 2, WIDE, {}),
    "softplus": (
        lambda x, beta, threshold: torch.where(x * beta > threshold, x, (1 + (beta * x).exp()).log() / beta),
        WIDE,
        SOFTPLUS,
    ),
    "softshrink": (lambda x, lambd: x - x.clamp(-lambd, lambd), WIDE, {"lambd": 0.75}),
    "softsign": (lambda x: x / (1 + x.abs()), WIDE, {}),
    "sqrt": (lambda x: x**0.5, POSITIVE, {}),
    "square": (lambda x: x * x, WIDE, {}),
    "swish": (lambda x: x * _sigmoid(x), WIDE, {}),
    "tan": (lambda x: torch.sin(x) / torch.cos(x), (-1.3, 1.3), {}),
    "tanh": (lambda x: 2 * _sigmoid(2 * x) - 1, WIDE, {}),
    "tanhshrink": (lambda x: x - torch.tanh(x), WIDE, {}),
    "threshold": (
        lambda x, threshold, value: torch.where(x > threshold, x, value),
        WIDE,
        {"threshold": 1.0, "value": 9.0},
    ),
    "tril": (lambda x, diagonal: _cut(x, lambda i, j: j - i <= diagonal), WIDE, {"diagonal": 2}),
    "triu": (lambda x, diagonal: _cut(x, lambda i, j: j - i >= diagonal), WIDE, {"diagonal": -1}),
    "trunc": (lambda x: x - torch.fmod(x, 1), WIDE, {}),
    "xielu": (
        lambda x, alpha_p, alpha_n: torch.where(
            x > 0, alpha_p * x * x + 0.5 * x, alpha_n * (x.clamp(max=-1e-6).exp() - 1) - alpha_n * x + 0.5 * x
        ),
        WIDE,
        {"alpha_p": 0.6, "alpha_n": 0.9},
    ),
}
"""By operation: a formula, the range of values it is asked for, and parameters."""

POSITIONAL = frozenset(
    {"fill", "heaviside", "leaky_relu", "prelu", "rdiv", "relu_max", "relu_min", "rpow", "threshold"}
)
POSITIONAL |= {"polygamma"}
BFLOAT16_ONLY = frozenset({"digamma", "i0", "i1", "lgamma", "multigammaln", "polygamma", "logit", "tril", "triu"})
LOSES_DIGITS = frozenset(
    {"digamma", "expm1", "asinh", "log_sigmoid", "log1p", "acosh", "tanhshrink", "polygamma", "lgamma"}
)
"""Whose formula here, or whose rule in float32, loses digits near zero: compared in bfloat16 and coarser only."""


def one_tensor(t: Env) -> None:
    for name in ONE:
        hold(t, 2, partial(_one, t, name))


def _one(env: Env, name: str, data: Any) -> None:
    formula, (low, high), options = ONE[name]
    dtype = choose(data, ["bfloat16"] if name in BFLOAT16_ONLY | LOSES_DIGITS else ["bfloat16", "float32"])
    shape = shape_of(data)
    x = on_mesh(env, lambda: numbers(data, shape, low, high), dtype)
    operation = getattr(env.ttnn, name)
    out = operation(x, *options.values()) if name in POSITIONAL else operation(x, **options)
    agree(env, out, [formula(value, **options) for value in held(env, x)], ulps=8.0 if dtype == "float32" else 2.0)


CASES = collect(globals())
