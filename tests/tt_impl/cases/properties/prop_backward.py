"""Gradients of elementwise operations against derivatives written down by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import agree, held, hold, numbers, on_mesh, shape_of

Formula = Callable[..., Any]
Range = tuple[float, float]
WIDE, POSITIVE, UNIT = (-4.0, 4.0), (0.5, 6.0), (-0.9, 0.9)


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def _density(x: Tensor) -> Tensor:
    return (-x * x / 2).exp() / math.sqrt(2 * math.pi)


def _normal(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _between(x: Tensor, low: float, high: float) -> Tensor:
    return ((x > low) & (x < high)).double()


def _slope(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Derivative by a central difference, for functions whose derivative is no formula."""
    return (function(x + 1e-5) - function(x - 1e-5)) / 2e-5


def _zero(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


ONE: dict[str, tuple[Formula, Range, dict[str, Any]]] = {
    "abs": (torch.sign, WIDE, {}),
    "acos": (lambda x: -((1 - x * x) ** -0.5), UNIT, {}),
    "acosh": (lambda x: (x * x - 1) ** -0.5, (1.5, 5.0), {}),
    "asin": (lambda x: (1 - x * x) ** -0.5, UNIT, {}),
    "asinh": (lambda x: (x * x + 1) ** -0.5, WIDE, {}),
    "atan": (lambda x: 1 / (1 + x * x), WIDE, {}),
    "atanh": (lambda x: 1 / (1 - x * x), UNIT, {}),
    "ceil": (_zero, WIDE, {}),
    "celu": (lambda x, alpha: torch.where(x > 0, 1.0, (x / alpha).exp()), WIDE, {"alpha": 0.7}),
    "cos": (lambda x: -torch.sin(x), WIDE, {}),
    "cosh": (torch.sinh, WIDE, {}),
    "deg2rad": (lambda x: torch.full_like(x, math.pi / 180), WIDE, {}),
    "digamma": (lambda x: _slope(torch.digamma, x), (1.0, 6.0), {}),
    "elu": (lambda x, alpha: torch.where(x > 0, 1.0, alpha * x.exp()), WIDE, {"alpha": 1.3}),
    "erf": (lambda x: 2 * _density(x * math.sqrt(2)) * math.sqrt(2), WIDE, {}),
    "erfc": (lambda x: -2 * _density(x * math.sqrt(2)) * math.sqrt(2), WIDE, {}),
    "erfinv": (lambda x: math.sqrt(math.pi) / 2 * (torch.erfinv(x) ** 2).exp(), UNIT, {}),
    "exp": (torch.exp, WIDE, {}),
    "exp2": (lambda x: 2.0**x * math.log(2), WIDE, {}),
    "expm1": (torch.exp, WIDE, {}),
    "fill_zero": (_zero, WIDE, {}),
    "floor": (_zero, WIDE, {}),
    "frac": (torch.ones_like, WIDE, {}),
    "gelu": (lambda x: _normal(x) + x * _density(x), WIDE, {}),
    "hardshrink": (lambda x, lambd: (x.abs() > lambd).double(), WIDE, {"lambd": 0.75}),
    "hardsigmoid": (lambda x: _between(x, -3, 3) / 6, WIDE, {}),
    "hardswish": (lambda x: torch.where(x > 3, 1.0, _between(x, -3, 3) * (x / 3 + 0.5)), WIDE, {}),
    "hardtanh": (lambda x, min, max: _between(x, min, max), WIDE, {"min": -1.25, "max": 0.7}),
    "i0": (torch.special.i1, WIDE, {}),
    "leaky_relu": (lambda x, negative_slope: torch.where(x > 0, 1.0, negative_slope), WIDE, {"negative_slope": 0.2}),
    "lgamma": (lambda x: torch.digamma(x), (2.5, 6.0), {}),
    "log": (lambda x: 1 / x, POSITIVE, {}),
    "log10": (lambda x: 1 / (x * math.log(10)), POSITIVE, {}),
    "log1p": (lambda x: 1 / (1 + x), POSITIVE, {}),
    "log2": (lambda x: 1 / (x * math.log(2)), POSITIVE, {}),
    "log_sigmoid": (lambda x: _sigmoid(-x), WIDE, {}),
    "logit": (lambda x: 1 / (x * (1 - x)), (0.1, 0.9), {}),
    "logiteps": (lambda x, eps: _between(x, eps, 1 - eps) / (x * (1 - x)), (0.1, 0.9), {"eps": 0.21}),
    "multigammaln": (lambda x: sum(torch.digamma(x - j / 2) for j in range(4)), (3.0, 6.0), {}),
    "neg": (lambda x: -torch.ones_like(x), WIDE, {}),
    "rad2deg": (lambda x: torch.full_like(x, 180 / math.pi), WIDE, {}),
    "reciprocal": (lambda x: -(x**-2.0), POSITIVE, {}),
    "relu": (lambda x: (x > 0).double(), WIDE, {}),
    "relu6": (lambda x: _between(x, 0, 6), (-9.0, 9.0), {}),
    "round": (_zero, WIDE, {}),
    "rsqrt": (lambda x: -0.5 * x**-1.5, POSITIVE, {}),
    "selu": (lambda x: 1.0507 * torch.where(x > 0, 1.0, 1.67326 * x.exp()), WIDE, {}),
    "sigmoid": (lambda x: _sigmoid(x) * _sigmoid(-x), WIDE, {}),
    "sign": (_zero, WIDE, {}),
    "silu": (lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x)), WIDE, {}),
    "sin": (torch.cos, WIDE, {}),
    "sinh": (torch.cosh, WIDE, {}),
    "softplus": (lambda x, beta, threshold: _sigmoid(beta * x), (-4.0, 1.0), {"beta": 0.5, "threshold": 1.0}),
    "softshrink": (lambda x, lambd: (x.abs() > lambd).double(), WIDE, {"lambd": 0.75}),
    "softsign": (lambda x: (1 + x.abs()) ** -2.0, WIDE, {}),
    "sqrt": (lambda x: 0.5 * x**-0.5, POSITIVE, {}),
    "square": (lambda x: 2 * x, WIDE, {}),
    "tan": (lambda x: 1 / torch.cos(x) ** 2, (-1.2, 1.2), {}),
    "tanh": (lambda x: 1 / torch.cosh(x) ** 2, WIDE, {}),
    "tanhshrink": (lambda x: torch.tanh(x) ** 2, WIDE, {}),
    "trunc": (_zero, WIDE, {}),
}
"""By operation: the derivative, the range of values, and parameters passed by name."""

POSITIONAL: dict[str, tuple[Formula, Range, tuple]] = {
    "clamp": (lambda x, low, high: _between(x, low, high), WIDE, (-1.25, 0.7)),
    "clip": (lambda x, low, high: _between(x, low, high), WIDE, (-1.25, 0.7)),
    "div_no_nan": (lambda x, number: torch.full_like(x, 1 / number), WIDE, (4.0,)),
    "polygamma": (lambda x, n: _slope(lambda y: torch.polygamma(1, y), x), (1.0, 5.0), (1,)),
    "pow": (lambda x, exponent: exponent * x ** (exponent - 1), POSITIVE, (2.5,)),
    "rdiv": (lambda x, number: -number / (x * x), POSITIVE, (3.0,)),
    "rpow": (lambda x, exponent: exponent * x ** (exponent - 1), POSITIVE, (2.5,)),  # sic: of x ** exponent
    "threshold": (lambda x, threshold, value: (x > threshold).double(), WIDE, (0.7, 9.0)),
}


KINKS = torch.tensor([-3.0, 3.0, -1.25, -0.75, 0.75, 6.0])
"""Where a function of the tables has a slope on either side, of which nobody says which one is given."""


def _beside_kinks(x: Tensor) -> Tensor:
    x = x.bfloat16().float()
    return torch.where(torch.isin(x, KINKS), x * (1 + 2.0**-5), x)


def of_one_tensor(t: Env) -> None:
    for name in [*ONE, *POSITIONAL]:
        hold(t, 1, partial(_one, t, name))


def _one(env: Env, name: str, data: Any) -> None:
    derivative, low_high, options = (ONE | POSITIONAL)[name]
    shape = shape_of(data, (4,))
    x = on_mesh(env, lambda: _beside_kinks(numbers(data, shape, *low_high)))
    grad = on_mesh(env, lambda: numbers(data, shape, -2.0, 2.0))
    operation = getattr(env.ttnn, f"{name}_bw")
    named = options if isinstance(options, dict) else {}
    positional = () if named or isinstance(options, dict) else options
    (out,) = operation(grad, x, *positional, **named)
    wanted = [g * derivative(v, *positional, **named) for g, v in zip(held(env, grad), held(env, x), strict=True)]
    agree(env, out, wanted)


TWO: dict[str, tuple[Formula, Range]] = {
    "add": (lambda a, b: (1, 1), WIDE),
    "atan2": (lambda a, b: (b / (a * a + b * b), -a / (a * a + b * b)), POSITIVE),
    "div": (lambda a, b: (1 / b, -a / (b * b)), POSITIVE),
    "fmod": (lambda a, b: (1, -torch.trunc(a / b)), POSITIVE),
    "hypot": (lambda a, b: (a / (a * a + b * b).sqrt(), b / (a * a + b * b).sqrt()), POSITIVE),
    "ldexp": (lambda a, b: (2.0**b, a * 2.0**b * math.log(2)), POSITIVE),
    "logaddexp": (lambda a, b: (_sigmoid(a - b), _sigmoid(b - a)), WIDE),
    "logaddexp2": (lambda a, b: (1 / (1 + 2.0 ** (b - a)), 1 / (1 + 2.0 ** (a - b))), WIDE),
    "max": (lambda a, b: ((a > b).double(), (b > a).double()), WIDE),
    "min": (lambda a, b: ((a < b).double(), (b < a).double()), WIDE),
    "mul": (lambda a, b: (b, a), WIDE),
    "remainder": (lambda a, b: (1, -torch.floor(a / b)), POSITIVE),
    "rsub": (lambda a, b: (-1, 1), WIDE),
    "squared_difference": (lambda a, b: (2 * (a - b), 2 * (b - a)), WIDE),
    "sub": (lambda a, b: (1, -1), WIDE),
    "xlogy": (lambda a, b: (b.log(), a / b), POSITIVE),
}
"""By operation: the derivatives by both operands."""


def of_two_tensors(t: Env) -> None:
    for name in TWO:
        hold(t, 1, partial(_two, t, name))


def _two(env: Env, name: str, data: Any) -> None:
    derivatives, low_high = TWO[name]
    shape = shape_of(data, (4,))
    a, b = (on_mesh(env, lambda: numbers(data, shape, *low_high)) for _ in range(2))
    grad = on_mesh(env, lambda: numbers(data, shape, -2.0, 2.0))
    outs = getattr(env.ttnn, f"{name}_bw")(grad, a, b)
    parts = list(zip(held(env, grad), held(env, a), held(env, b), strict=True))
    for place, out in enumerate(outs):
        clear = [x != y for _, x, y in parts]  # at a tie of max and min the gradient is split
        wanted = [
            torch.where(c, g * derivatives(x, y)[place], g / 2) for c, (g, x, y) in zip(clear, parts, strict=True)
        ]
        agree(env, out, wanted if name in ("max", "min") else [g * derivatives(x, y)[place] for g, x, y in parts])


def of_more(t: Env) -> None:
    ttnn, grad = t.ttnn, t.rand(1, 1, 32, 64)
    a, b, c = (t.rand(1, 1, 32, 64) for _ in range(3))
    positive = (c.abs() + 0.5).bfloat16().float()
    g, on_a, on_b, on_c = (t.put(x) for x in (grad, a, b, positive))
    for out, wanted in zip(
        ttnn.addcmul_bw(g, on_a, on_b, on_c, 0.5), (grad, grad * positive / 2, grad * b / 2), strict=True
    ):
        t.check(out, wanted)
    for out, wanted in zip(
        ttnn.addcdiv_bw(g, on_a, on_b, on_c, 0.5),
        (grad, grad / positive / 2, -grad * b / positive**2 / 2),
        strict=True,
    ):
        t.check(out, wanted, ulps=2.0)
    for out, wanted in zip(ttnn.lerp_bw(g, on_a, on_b, 0.25), (grad * 0.75, grad * 0.25), strict=True):
        t.check(out, wanted)
    for out, wanted in zip(ttnn.addalpha_bw(g, on_a, on_b, 3.0), (grad, grad * 3), strict=True):
        t.check(out, wanted)
    for out, wanted in zip(ttnn.subalpha_bw(g, on_a, on_b, 3.0), (grad, grad * -3), strict=True):
        t.check(out, wanted)
    condition = t.put((a > 0).float())
    for out, wanted in zip(ttnn.where_bw(g, condition, on_a, on_b), (grad * (a > 0), grad * (a <= 0)), strict=True):
        t.check(out, wanted)
    only = [x for x in ttnn.mul_bw(g, on_a, on_b, are_required_outputs=[False, True]) if x is not None]
    assert len(only) == 1
    t.check(only[0], grad * a)
    t.check(ttnn.fill_bw(g, on_a)[0], torch.zeros_like(grad))
    t.check(ttnn.assign_bw(g, on_a)[0], grad)
    for out in ttnn.assign_bw(g, on_a, on_b):
        t.check(out, grad)
    shared = ttnn.bias_gelu_bw(g, on_a, on_b, variant=ttnn.GeluVariant.Accurate)
    slope = _normal((a + b).double()) + (a + b) * _density((a + b).double())
    for out in shared:
        t.check(out, (grad * slope).float(), ulps=2.0)


def at_edges(t: Env) -> None:
    """Where a derivative jumps, and where ttnn gives another one than mathematics, as its golden functions say."""
    ttnn, inf, nan = t.ttnn, float("inf"), float("nan")
    x = t.put(torch.tensor([[-2.0, -1.0, 0.0, 1.0, 6.0]]))
    grad = t.put(torch.full((1, 5), 2.0))
    slope = 2 * 1.0507 * 1.67326
    for out, wanted in (
        (ttnn.relu6_bw(grad, x), (0.0, 0.0, 0.0, 2.0, 0.0)),
        (ttnn.hardtanh_bw(grad, x, min=-1.0, max=1.0), (0.0, 0.0, 2.0, 0.0, 0.0)),
        (ttnn.clamp_bw(grad, x, -1.0, 1.0), (0.0, 2.0, 2.0, 2.0, 0.0)),
        (ttnn.clip_bw(grad, x, t.put(torch.full((1, 5), -1.5)), t.put(torch.ones(1, 5))), (0.0, 2.0, 2.0, 2.0, 0.0)),
        (ttnn.leaky_relu_bw(grad, x, negative_slope=0.5), (1.0, 1.0, 1.0, 2.0, 2.0)),
        (ttnn.selu_bw(grad, x), (slope * math.exp(-2), slope * math.exp(-1), slope, 2.1014, 2.1014)),
        (ttnn.pow_bw(grad, x, 2.0), (inf, inf, 0.0, 4.0, 24.0)),
        (ttnn.pow_bw(grad, x, 0.0), (0.0,) * 5),
        (ttnn.rpow_bw(grad, x, 2.0), (nan, nan, 0.0, 4.0, 24.0)),
        (ttnn.rpow_bw(grad, x, 0.0), (0.0,) * 5),
    ):
        t.check(out[0], torch.tensor([wanted]))
    nothing, most = t.device.sfpu_nan(), t.device.sfpu_inf()  # what the device has for NaN and infinity
    wanted = torch.tensor([[2 / 3**0.5, most, nothing, most, 2 / 35**0.5]])
    t.check(ttnn.acosh_bw(grad, x)[0], wanted)
    y = torch.full((1, 5), -6.0, dtype=torch.float64)  # where the slope is a small difference
    t.check(ttnn.gelu_bw(grad, t.put(y.float()))[0], (2 * (_normal(y) + y * _density(y))).float())


def of_shapes(t: Env) -> None:
    """Joining, repeating and multiplying along a dim."""
    ttnn, a, b = t.ttnn, t.rand(1, 1, 32, 64), t.rand(1, 1, 64, 64)
    grad = t.rand(1, 1, 96, 64)
    for out, wanted in zip(ttnn.concat_bw(t.put(grad), t.put(a), t.put(b), 2), grad.split([32, 64], 2), strict=True):
        t.check(out, wanted)
    twice = t.rand(2, 1, 32, 64)
    (out,) = ttnn.repeat_bw(t.put(twice), t.put(a), ttnn.Shape([2, 1, 1, 1]))
    t.check(out, twice.sum(0, keepdim=True))
    x = (t.rand(1, 3, 32, 64).abs() + 0.5).bfloat16().float()
    one = t.rand(1, 1, 32, 64)
    (out,) = ttnn.prod_bw(t.put(one), t.put(x), dim=1)
    t.check(out, one * x.prod(1, keepdim=True) / x, ulps=2.0)
    few = x[:, :, :1, :4].contiguous()  # of a gradient as large as the input the first is read, which one device can
    alone = t.device.create_submesh(ttnn.MeshShape(1, 1))
    on_alone = ttnn.from_torch(few, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=alone)
    (out,) = ttnn.prod_bw(on_alone, on_alone)
    t.check(out, few[0, 0, 0, 0] * few.prod() / few, ulps=2.0)


CASES = collect(globals())
