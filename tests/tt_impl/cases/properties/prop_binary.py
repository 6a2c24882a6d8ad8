"""Elementwise operations of two and three operands against formulas: broadcasting, numbers, integers, in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect, raises
from tests.tt_impl.properties import agree, choose, held, hold, numbers, on_mesh, shape_of

Formula = Callable[..., Tensor]
Range = tuple[float, float]
WIDE, POSITIVE = (-4.0, 4.0), (0.25, 4.0)


def _truth(x: Tensor) -> Tensor:
    return x.double()


FLOATS: dict[str, tuple[Formula, Range, Range]] = {
    "add": (lambda a, b: a - (-b), WIDE, WIDE),
    "atan2": (lambda a, b: torch.angle(torch.complex(b, a)), WIDE, WIDE),
    "bias_gelu": (lambda a, b: (a + b) * 0.5 * (1 + torch.erf((a + b) / math.sqrt(2))), (0, 3), (0, 3)),
    "div": (lambda a, b: a * b**-1.0, WIDE, POSITIVE),
    "div_no_nan": (lambda a, b: a * b**-1.0, WIDE, POSITIVE),
    "divide": (lambda a, b: a * b**-1.0, WIDE, POSITIVE),
    "eq": (lambda a, b: _truth((a - b) == 0), WIDE, WIDE),
    "fmod": (lambda a, b: a - b * torch.trunc(a / b), WIDE, POSITIVE),
    "ge": (lambda a, b: _truth((a - b) >= 0), WIDE, WIDE),
    "gt": (lambda a, b: _truth((a - b) > 0), WIDE, WIDE),
    "hypot": (lambda a, b: (a * a + b * b).sqrt(), WIDE, WIDE),
    "ldexp": (lambda a, b: a * 2.0**b, WIDE, WIDE),
    "le": (lambda a, b: _truth((a - b) <= 0), WIDE, WIDE),
    "logaddexp": (lambda a, b: (a.exp() + b.exp()).log(), POSITIVE, POSITIVE),
    "logaddexp2": (lambda a, b: (2.0**a + 2.0**b).log2(), POSITIVE, POSITIVE),
    "logical_and": (lambda a, b: _truth(a * b != 0), WIDE, WIDE),
    "logical_or": (lambda a, b: _truth(a.abs() + b.abs() != 0), WIDE, WIDE),
    "logical_xor": (lambda a, b: _truth((a == 0) != (b == 0)), WIDE, WIDE),
    "lt": (lambda a, b: _truth((a - b) < 0), WIDE, WIDE),
    "maximum": (lambda a, b: torch.where(a > b, a, b), WIDE, WIDE),
    "minimum": (lambda a, b: torch.where(a > b, b, a), WIDE, WIDE),
    "multiply": (lambda a, b: torch.exp(a.log() + b.log()), POSITIVE, POSITIVE),
    "ne": (lambda a, b: _truth((a - b) != 0), WIDE, WIDE),
    "pow": (lambda a, b: (b * a.log()).exp(), POSITIVE, WIDE),
    "remainder": (lambda a, b: a - b * torch.floor(a / b), WIDE, POSITIVE),
    "rsub": (lambda a, b: b - a, WIDE, WIDE),
    "squared_difference": (lambda a, b: a * a - 2 * a * b + b * b, WIDE, WIDE),
    "subtract": (lambda a, b: a + (-b), WIDE, WIDE),
    "xlogy": (lambda a, b: a * b.log2() * math.log(2), WIDE, POSITIVE),
}
"""By operation: a formula in float64 and the ranges of both operands."""

TENSORS_ONLY = frozenset({"atan2", "hypot"})
IN_PLACE = """
    add bias_gelu divide eq ge gt ldexp le logaddexp logaddexp2 logical_and logical_or logical_xor lt multiply ne rsub
    squared_difference subtract
""".split()
LOSES_DIGITS = frozenset({"fmod", "remainder", "squared_difference", "logaddexp", "logaddexp2", "pow"})

BITS = 32
INTEGERS: dict[str, tuple[Formula, Range, Range]] = {
    "add": (lambda a, b: a + b, (-9000, 9000), (-9000, 9000)),
    "bitwise_and": (lambda a, b: a + b - (a | b), (0, 2**30), (0, 2**30)),
    "bitwise_left_shift": (lambda a, b: a * 2**b, (-999, 999), (0, 12)),
    "bitwise_or": (lambda a, b: ~(~a & ~b), (-(2**30), 2**30), (-(2**30), 2**30)),
    "bitwise_right_shift": (lambda a, b: torch.floor_divide(a, 2**b), (-(2**30), 2**30), (0, 31)),
    "bitwise_xor": (lambda a, b: (a | b) - (a & b), (-(2**30), 2**30), (-(2**30), 2**30)),
    "eq": (lambda a, b: (a - b == 0).long(), (0, 3), (0, 3)),
    "gcd": (lambda a, b: _each(math.gcd, a, b), (-900, 900), (-900, 900)),
    "lcm": (lambda a, b: _each(math.lcm, a, b), (-90, 90), (1, 90)),
    "logical_left_shift": (lambda a, b: a * 2**b, (0, 999), (0, 12)),
    "logical_right_shift": (lambda a, b: torch.floor_divide(a % 2**BITS, 2**b), (0, 2**30), (0, 31)),
    "lt": (lambda a, b: (a - b < 0).long(), (-3, 3), (-3, 3)),
    "maximum": (lambda a, b: torch.where(a > b, a, b), (-900, 900), (-900, 900)),
    "minimum": (lambda a, b: torch.where(a > b, b, a), (-900, 900), (-900, 900)),
    "multiply": (lambda a, b: a * b, (-900, 900), (-900, 900)),
    "remainder": (lambda a, b: a - b * torch.floor_divide(a, b), (-900, 900), (1, 90)),
    "rsub": (lambda a, b: b - a, (-900, 900), (-900, 900)),
    "subtract": (lambda a, b: a - b, (-9000, 9000), (-9000, 9000)),
}


def _each(function: Callable[[int, int], int], a: Tensor, b: Tensor) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    return torch.tensor([function(x, y) for x, y in zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)]).view(
        a.shape
    )


def _shapes(data: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of two operands of which one or both have single entries where the other has more."""
    shape = shape_of(data, (2, 4))
    other = list(shape)
    for dim in range(len(shape)):
        if choose(data, [False, False, True]):
            other[dim] = 1
    pair = (shape, tuple(other))
    return pair if choose(data, [True, False]) else pair[::-1]


def of_floats(t: Env) -> None:
    for name in FLOATS:
        hold(t, 2, partial(_floats, t, name))


def _floats(env: Env, name: str, data: Any) -> None:
    formula, low_high, other = FLOATS[name]
    dtype = choose(data, ["bfloat16"] if name in LOSES_DIGITS else ["bfloat16", "float32"])
    shapes = _shapes(data)
    a = on_mesh(env, lambda: numbers(data, shapes[0], *low_high).round(decimals=1), dtype)
    if name not in TENSORS_ONLY and choose(data, [False, True]):
        number = choose(data, [0.5, 2.0, 3.0])
        out = getattr(env.ttnn, name)(a, number)
        wanted = [formula(x, torch.tensor(number, dtype=torch.float64)) for x in held(env, a)]
    else:
        b = on_mesh(env, lambda: numbers(data, shapes[1], *other).round(decimals=1), dtype)
        out = getattr(env.ttnn, name)(a, b)
        wanted = [formula(x, y) for x, y in zip(held(env, a), held(env, b), strict=True)]
    agree(env, out, wanted, ulps=8.0 if dtype == "float32" else 2.0)


def of_integers(t: Env) -> None:
    for name in INTEGERS:
        hold(t, 2, partial(_integers, t, name))


def _integers(env: Env, name: str, data: Any) -> None:
    formula, low_high, other = INTEGERS[name]
    shape = shape_of(data, (2, 4))
    a = on_mesh(env, lambda: numbers(data, shape, *low_high, integers=True).int(), "int32")
    b = on_mesh(env, lambda: numbers(data, shape, *other, integers=True).int(), "int32")
    out = getattr(env.ttnn, name)(a, b)
    agree(env, out, [formula(x, y) for x, y in zip(held(env, a), held(env, b), strict=True)])


def in_place(t: Env) -> None:
    for name in IN_PLACE:
        hold(t, 1, partial(_in_place, t, name))


def _in_place(env: Env, name: str, data: Any) -> None:
    formula, low_high, other = FLOATS[name]
    shape = shape_of(data)
    a = on_mesh(env, lambda: numbers(data, shape, *low_high))
    b = on_mesh(env, lambda: numbers(data, shape, *other))
    wanted = [formula(x, y) for x, y in zip(held(env, a), held(env, b), strict=True)]
    out = getattr(env.ttnn, f"{name}_")(a, b)
    assert out.buffer_address() == a.buffer_address()
    agree(env, a, wanted)


THREE: dict[str, tuple[Formula, dict[str, Any]]] = {
    "addcdiv": (lambda a, b, c, value: a + value * (b / c), {"value": 0.5}),
    "addcmul": (lambda a, b, c, value: a + value * (b * c), {"value": -1.5}),
    "lerp": (lambda a, b, c: a * (1 - c) + b * c, {}),
    "mac": (lambda a, b, c: c + b * a, {}),
    "where": (lambda a, b, c: (a != 0) * b + (a == 0) * c, {}),
}


def of_three(t: Env) -> None:
    for name in THREE:
        hold(t, 2, partial(_three, t, name))


def _three(env: Env, name: str, data: Any) -> None:
    formula, options = THREE[name]
    dtype = choose(data, ["bfloat16", "float32"])
    shape = shape_of(data)
    operands = [on_mesh(env, lambda: numbers(data, shape, 0.0, 3.0).round(), dtype) for _ in range(2)]
    operands.append(on_mesh(env, lambda: numbers(data, shape, 0.5, 3.0), dtype))
    out = getattr(env.ttnn, name)(*operands, **options)
    parts = zip(*(held(env, x) for x in operands), strict=True)
    agree(env, out, [formula(*xs, **options) for xs in parts], ulps=8.0 if dtype == "float32" else 2.0)


def rounding_of_divisions(t: Env) -> None:
    ttnn, a, b = t.ttnn, t.rand(32, 64, scale=5.0), t.rand(32, 64).abs() + 0.5
    b = b.bfloat16().float()
    on = [t.put(x, dtype="float32") for x in (a, b)]
    t.check(ttnn.div(*on, rounding_mode="floor"), torch.floor(a / b))
    t.check(ttnn.div(*on, rounding_mode="trunc"), torch.trunc(a / b))
    t.check(ttnn.floor_div(*on), torch.floor(a / b))
    whole = [torch.randint(-99, 99, (32, 64), generator=t.random), torch.randint(1, 9, (32, 64), generator=t.random)]
    ints = [t.put(x.int(), dtype="int32") for x in whole]
    t.check(ttnn.div(*ints, rounding_mode="floor"), whole[0] // whole[1])
    t.check(ttnn.div(*ints, rounding_mode="trunc"), (whole[0] / whole[1]).trunc().long())


def numbers_as_the_tensor_has_them(t: Env) -> None:
    """0.05 is 0.050048828125 beside bfloat16; a number that is a parameter keeps its digits."""
    ttnn, x = t.ttnn, torch.full((32, 32), 0.05)
    difference = ttnn.subtract(t.put(x), 0.05)
    t.check(difference, torch.zeros(32, 32))
    t.check(ttnn.subtract(t.put(x, dtype="float32"), 0.05), torch.zeros(32, 32))
    t.check(ttnn.pow(0.05, t.put(torch.full((32, 32), 8.0))), torch.full((32, 32), 0.050048828125**8))
    t.check(ttnn.eq(t.put(x), 0.05), torch.ones(32, 32))
    t.check(ttnn.add(t.put(torch.full((32, 32), 7, dtype=torch.int32), dtype="int32"), 2), torch.full((32, 32), 9))


def activations_on_every_side(t: Env) -> None:
    ttnn, a, b = t.ttnn, t.rand(32, 64), t.rand(32, 64)
    kinds, with_param = ttnn.UnaryOpType, ttnn.UnaryWithParam
    out = ttnn.add(
        t.put(a),
        t.put(b),
        activations=[with_param(kinds.LEAKY_RELU, 0.25)],
        input_tensor_a_activations=[with_param(kinds.EXP)],
        input_tensor_b_activations=[with_param(kinds.NEG), with_param(kinds.ADD_UNARY_SFPU, 1.0)],
    )
    t.check(out, F.leaky_relu(a.exp() + (1 - b), 0.25), ulps=2.0)
    for kind, parameters, function in (
        (kinds.POWER, (2.0,), lambda x: x * x),
        (kinds.RELU_MAX, (0.5,), lambda x: x.clamp(0, 0.5)),
        (kinds.ELU, (0.7,), lambda x: F.elu(x, 0.7)),
        (kinds.HARDTANH, (-0.5, 0.25), lambda x: x.clamp(-0.5, 0.25)),
        (kinds.UNARY_GT, (0.0,), lambda x: (x > 0).float()),
        (kinds.RSUB, (1.0,), lambda x: 1 - x),
    ):
        out = ttnn.multiply(t.put(a), t.put(b), activations=[with_param(kind, *parameters)])
        t.check(out, function(a * b), ulps=2.0)
    chained = ttnn.unary_chain(t.put(a), [with_param(kinds.RELU), with_param(kinds.EXP), with_param(kinds.POWER, 3.0)])
    t.check(chained, (3 * a.clamp(min=0)).exp(), ulps=2.0)


def others(t: Env) -> None:
    ttnn, a, b = t.ttnn, t.rand(32, 64), t.rand(32, 64)
    t.check(ttnn.addalpha(t.put(a), t.put(b), 0.5), a + 0.5 * b)
    t.check(ttnn.subalpha(t.put(a), t.put(b), 0.5), a - 0.5 * b)
    t.check(ttnn.polyval(t.put(a), [2.0, 0.0, -1.0, 3.0]), 2 * a**3 - a + 3, ulps=4.0)
    near = (a + 0.001).float()
    on = [t.put(x, dtype="float32") for x in (a, near)]
    t.check(ttnn.isclose(*on, rtol=0.0, atol=0.01), torch.ones(32, 64))
    t.check(ttnn.isclose(*on, rtol=0.0, atol=1e-5), torch.zeros(32, 64))
    row, column = t.rand(1, 1, 1, 64), t.rand(1, 1, 32, 1)
    x, alpha, beta = t.rand(1, 1, 32, 64), t.rand(64), t.rand(64).abs() + 0.5
    beta = beta.bfloat16().float()
    t.check(ttnn.snake_beta(t.put(x), t.put(alpha), t.put(beta)), x + torch.sin(alpha * x) ** 2 / beta, ulps=2.0)
    whole = t.rand(1, 1, 32, 64)
    t.check(ttnn.bcast(t.put(whole), t.put(row), ttnn.BcastOpMath.ADD, ttnn.BcastOpDim.H), whole + row)
    t.check(ttnn.bcast(t.put(whole), t.put(column), ttnn.BcastOpMath.MUL, ttnn.BcastOpDim.W), whole * column)


def losses(t: Env) -> None:
    ttnn, a, b = t.ttnn, t.rand(2, 40, 50), t.rand(2, 40, 50)
    on = t.put(a), t.put(b)
    modes = ttnn.LossReductionMode
    t.check(ttnn.l1_loss(*on), (a - b).abs(), ulps=1.0)
    t.check(ttnn.l1_loss(*on, reduction=modes.MEAN), F.l1_loss(a, b), ulps=2.0)
    t.check(ttnn.mse_loss(*on, reduction=modes.NONE), F.mse_loss(a, b, reduction="none"), ulps=1.0)
    t.check(ttnn.mse_loss(*on, reduction=modes.SUM), F.mse_loss(a, b, reduction="sum"), ulps=2.0)


def first_of_a_whole_tile(t: Env) -> None:
    """``bcast`` takes one row, column or number of a second operand that is a whole tile."""
    ttnn, dims, a, b = t.ttnn, t.ttnn.BcastOpDim, t.rand(1, 2, 32, 32), t.rand(1, 2, 32, 32)
    for dim, taken in ((dims.H, b[:, :, :1]), (dims.W, b[..., :1]), (dims.HW, b[:, :, :1, :1])):
        t.check(ttnn.bcast(t.put(a), t.put(b), ttnn.BcastOpMath.SUB, dim), a - taken)
    tall = t.rand(1, 2, 96, 32)
    t.check(ttnn.bcast(t.put(tall), t.put(b), ttnn.BcastOpMath.ADD, dims.H), tall + b[:, :, :1])


def borders_of_domains(t: Env) -> None:
    """Infinite in bfloat16, NaN in float32; NaN that was there stays."""
    ttnn, out_of_domain = t.ttnn, torch.full((32, 32), 3.0)
    t.check(ttnn.acos(t.put(out_of_domain)), torch.full((32, 32), math.inf))
    t.check(ttnn.acos(t.put(out_of_domain, dtype="float32")), torch.full((32, 32), math.nan))
    zero = torch.zeros(32, 32)
    t.check(ttnn.div(t.put(zero), t.put(zero)), torch.full((32, 32), math.inf))
    t.check(ttnn.div(t.put(zero, dtype="float32"), t.put(zero, dtype="float32")), torch.full((32, 32), math.nan))
    t.check(ttnn.div_no_nan(t.put(zero), t.put(zero)), zero)


def refused(t: Env) -> None:
    from tt_impl.mock.storage.errors import RefusedOption

    ttnn, x = t.ttnn, t.put(torch.full((32, 32), 3, dtype=torch.int32), dtype="int32")
    nothing = t.put(torch.zeros(32, 32, dtype=torch.int32), dtype="int32")
    raises(RefusedOption, lambda: ttnn.remainder(x, nothing), "remainder", "zero")
    raises(RefusedOption, lambda: ttnn.bitwise_right_shift(x, -1), "right shift")
    relu = [ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)]
    raises(RefusedOption, lambda: ttnn.maximum(t.put(t.rand(32, 32)), 0.5, activations=relu), "activations")


CASES = collect(globals())
