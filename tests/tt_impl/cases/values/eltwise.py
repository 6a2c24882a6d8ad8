"""Elementwise operations, reductions, softmax and embedding against torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect

POSITIVE = {"log", "rsqrt", "sqrt", "reciprocal"}
UNARY = {
    "abs": torch.abs, "ceil": torch.ceil, "cos": torch.cos, "erf": torch.erf, "exp": torch.exp,
    "floor": torch.floor, "gelu": F.gelu, "identity": torch.clone, "log": torch.log, "neg": torch.neg,
    "reciprocal": torch.reciprocal, "relu": F.relu, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid,
    "sign": torch.sign, "silu": F.silu, "sin": torch.sin, "sqrt": torch.sqrt, "square": torch.square,
    "tanh": torch.tanh,
}  # fmt: skip
BINARY = {
    "add": torch.add, "divide": torch.div, "eq": torch.eq, "ge": torch.ge, "gt": torch.gt, "le": torch.le,
    "lt": torch.lt, "maximum": torch.maximum, "minimum": torch.minimum, "multiply": torch.mul, "ne": torch.ne,
    "subtract": torch.sub,
}  # fmt: skip


def unary(t: Env) -> None:
    for name, function in UNARY.items():
        x = t.rand(1, 1, 64, 256)
        x = x.abs() + 0.5 if name in POSITIVE else x
        out = getattr(t.ttnn, name)(t.put(x, (2, 3)))
        t.check(out, t.shards(function(x.bfloat16().float()), (2, 3)))


def unary_at_every_bfloat16(t: Env) -> None:
    """In float32 some of torch's own functions overflow before their results do."""
    patterns = torch.arange(2**16).to(torch.int16).view(torch.bfloat16).float()
    x = patterns[patterns.isfinite()].reshape(1, 1, -1, 64)
    for name, function in {"cosh": torch.cosh, "sinh": torch.sinh, "hardswish": F.hardswish}.items():
        out = getattr(t.ttnn, name)(t.put(x, dtype="float32"))
        assert torch.equal(t.shadow.values(out)[0], function(x.double()).float()), name


def logit_rounds_as_its_kernel(t: Env) -> None:
    """In bfloat16, 1 - 0.498 is 0.5; 0.38 is 0.380859375 as a bound, and 1 - 0.38 is 0.6171875."""
    for value, eps, wanted in (
        (0.498046875, None, 0.99609375),
        (0.498046875, -1.0, 0.99609375),
        (0.1, 0.38, 0.6171875),  # 0.380859375 / 0.6171875
        (0.9, 0.38, 1.609375),  # 0.6171875 / 0.3828125
        (0.9, 1.0, 8.875),  # 0.8984375 / 0.1015625
    ):
        x = torch.full((32, 32), value).bfloat16()
        out = t.ttnn.logit(t.put(x), eps=eps)
        assert t.shadow.values(out)[0][0, 0] == torch.tensor(wanted).bfloat16().log(), (value, eps)
        exact = t.ttnn.logit(t.put(x.float(), dtype="float32"), eps=eps)
        assert t.shadow.values(exact)[0][0, 0] == t.ttnn.get_golden_function(t.ttnn.logit)(x.float(), eps=eps)[0, 0]


def binary(t: Env) -> None:
    for name, function in BINARY.items():
        a, b = t.rand(1, 1, 64, 256), t.rand(1, 1, 64, 256)
        a[..., ::2] = b[..., ::2]  # equal ones too, for the comparisons
        out = getattr(t.ttnn, name)(t.put(a, (2, 3)), t.put(b, (2, 3)))
        t.check(out, t.shards(function(a, b).float(), (2, 3)))


def scalars_and_broadcast(t: Env) -> None:
    x, row, column = t.rand(1, 1, 32, 64), t.rand(1, 1, 1, 64), t.rand(1, 1, 32, 1)
    a = t.put(x)
    t.check(t.ttnn.multiply(a, 3.0), x * 3)
    t.check(t.ttnn.add(a, t.put(row)), x + row)
    t.check(t.ttnn.multiply(a, t.put(column)), x * column)
    t.check(t.ttnn.rsub(a, 1.0), 1 - x)
    t.check(t.ttnn.maximum(a, 0.5), x.clamp(min=0.5))
    t.check(t.ttnn.pow(a, 2.0), x**2)


def activations_of_operands(t: Env) -> None:
    """As a gated feed-forward has them: one op for the product and the activation of one side."""
    gate, up = t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    kinds = t.ttnn.UnaryOpType
    for kind, function in (
        (kinds.GELU_TANH, lambda x: F.gelu(x, approximate="tanh")),
        (kinds.SIGMOID, torch.sigmoid),
    ):
        t.check(t.ttnn.multiply(t.put(gate), t.put(up), input_tensor_a_activations=[kind]), function(gate) * up)
        t.check(t.ttnn.multiply(t.put(gate), t.put(up), input_tensor_b_activations=[kind]), gate * function(up))


KINDS: dict[str, tuple[tuple, Callable[[torch.Tensor], torch.Tensor]]] = {
    "ADD_UNARY_SFPU": ((1.5,), lambda x: x + 1.5),
    "CLAMP_TSS": ((-0.5, 0.75), lambda x: x.clamp(-0.5, 0.75)),
    "DIV_UNARY_SFPU": ((4.0,), lambda x: x / 4),
    "LOGICAL_NOT_UNARY": ((), lambda x: (x == 0).float()),
    "LOGSIGMOID": ((), F.logsigmoid),
    "MAXIMUM": ((0.25,), lambda x: x.clamp(min=0.25)),
    "MINIMUM": ((0.25,), lambda x: x.clamp(max=0.25)),
    "MUL_UNARY_SFPU": ((3.0,), lambda x: x * 3),
    "POWER": ((2.0,), torch.square),
    "POWER_ITERATIVE": ((3,), lambda x: x**3),
    "PRELU_SFPU": ((0.25,), lambda x: torch.where(x < 0, x / 4, x)),
    "RECIP": ((), lambda x: 1 / x),
    "RSUB": ((2.0,), lambda x: 2 - x),
    "SUB_UNARY_SFPU": ((0.5,), lambda x: x - 0.5),
    "UNARY_EQ": ((0.5,), lambda x: (x == 0.5).float()),
    "UNARY_GE": ((0.5,), lambda x: (x >= 0.5).float()),
    "UNARY_GT": ((0.5,), lambda x: (x > 0.5).float()),
    "UNARY_LE": ((0.5,), lambda x: (x <= 0.5).float()),
    "UNARY_LT": ((0.5,), lambda x: (x < 0.5).float()),
    "UNARY_NE": ((0.5,), lambda x: (x != 0.5).float()),
}
"""Activations that have another name than an operation: parameters and formula."""


def activations_by_kind(t: Env) -> None:
    from tt_impl.mock.rules.eltwise import ACTIVATIONS

    ttnn, x = t.ttnn, t.rand(1, 1, 32, 64)
    x[..., :2] = torch.tensor([0.0, 0.5])
    assert set(ACTIVATIONS) == {name.lower() for name in KINDS} | {"gelu_tanh"}
    for name, (parameters, formula) in KINDS.items():
        kind = getattr(ttnn.UnaryOpType, name)
        out = ttnn.add(t.put(x), 0.0, activations=[ttnn.UnaryWithParam(kind, *parameters)])
        t.check(out, formula(x), ulps=2)


def operators(t: Env) -> None:
    x, y = t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64) + 3
    y = y.bfloat16().float()
    a, b = t.put(x), t.put(y)
    t.check(a + b, x + y)
    t.check(a - b, x - y)
    t.check(a * b, x * y)
    t.check(a / b, x / y)
    t.check(1 - a, 1 - x)


def fused_activations(t: Env) -> None:
    ttnn, x, y = t.ttnn, t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    silu = ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU)
    t.check(ttnn.add(t.put(x), t.put(y), activations=[silu]), F.silu(x + y))
    gated = ttnn.multiply(t.put(x), t.put(y), input_tensor_a_activations=[ttnn.UnaryOpType.SILU])
    t.check(gated, F.silu(x) * y)


def in_place(t: Env) -> None:
    ttnn, x, y = t.ttnn, t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    for name, expected in {"add_": x + y, "subtract_": x - y, "multiply_": x * y, "rsub_": y - x}.items():
        a = t.put(x)
        identity = a.tensor_id
        view = ttnn.reshape(a, (1, 32, 64))
        out = getattr(ttnn, name)(a, t.put(y))
        assert out.tensor_id == identity
        t.check(a, expected)
        t.check(view, expected[0])  # a view sees what was written through another one
    a = t.put(x)
    ttnn.divide_(a, 2.0)
    t.check(a, x / 2)


def preallocated(t: Env) -> None:
    x, y, out = t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64), t.empty(1, 1, 32, 64)
    same = t.ttnn.add(t.put(x), t.put(y), output_tensor=out)
    assert same.tensor_id == out.tensor_id
    t.check(out, x + y)


def unwritten_is_nan(t: Env) -> None:
    assert all(value.isnan().all() for value in t.shadow.values(t.empty(1, 1, 32, 32)))


def gelu_variants(t: Env) -> None:
    x = t.rand(1, 1, 32, 64)
    variant = t.ttnn.GeluVariant.Tanh
    t.check(t.ttnn.gelu(t.put(x), variant=variant), F.gelu(x, approximate="tanh"))


def ternary(t: Env) -> None:
    ttnn, a, b, c = t.ttnn, *(t.rand(1, 1, 32, 64) for _ in range(3))
    t.check(ttnn.addcmul(t.put(a), t.put(b), t.put(c), value=0.5), a + 0.5 * b * c)
    t.check(ttnn.where(ttnn.gt(t.put(a), 0.0), t.put(b), t.put(c)), torch.where(a > 0, b, c))
    nan = float("nan")
    for dtype, made in (("bfloat16", torch.inf), ("float32", nan)):
        where = ttnn.where(t.put((a > 0).float(), dtype=dtype), 2.0, nan)
        assert t.shadow.values(where)[0].equal(torch.where(a > 0, 2.0, made)) or made != torch.inf
        assert bool((t.shadow.values(where)[0].isnan() == ((a <= 0) & (made != torch.inf))).all())
    t.check(ttnn.clamp(t.put(a), min=-1, max=1), a.clamp(-1, 1))


def gated_units(t: Env) -> None:
    x = t.rand(1, 1, 32, 128)
    value, gate = x.chunk(2, -1)
    t.check(t.ttnn.swiglu(t.put(x), -1), value * F.silu(gate))
    t.check(t.ttnn.geglu(t.put(x), -1), value * F.gelu(gate))


def reductions(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 2, 32, 64)
    a = t.put(x)
    t.check(ttnn.sum(a, dim=-1, keepdim=True), x.sum(-1, keepdim=True))
    t.check(ttnn.mean(a, dim=2), x.mean(2))
    t.check(ttnn.max(a, dim=-1, keepdim=True), x.amax(-1, keepdim=True))
    t.check(ttnn.min(a, dim=-1, keepdim=True), x.amin(-1, keepdim=True))
    t.check(ttnn.sum(a), x.sum())


def choices(t: Env) -> None:
    x = torch.stack([torch.randperm(64, generator=t.random) for _ in range(32)]).reshape(1, 1, 32, 64).float()
    row_major = t.put(x, layout="ROW_MAJOR")
    t.check(t.ttnn.argmax(row_major, dim=-1), x.argmax(-1))
    values, places = t.ttnn.topk(t.put(x), 32, -1)
    t.check(values, x.topk(32)[0])
    t.check(places, x.topk(32)[1])


def softmax(t: Env) -> None:
    x = t.rand(1, 1, 32, 256)
    t.check(t.ttnn.softmax(t.put(x), dim=-1), x.softmax(-1))


def embedding(t: Env) -> None:
    """Dims of one between batch and words are dropped."""
    for shape in ((2, 64), (2, 1, 1, 64)):
        ids, table = torch.randint(0, 100, shape, generator=t.random), t.rand(100, 64)
        out = t.ttnn.embedding(
            t.put(ids, dtype="uint32", layout="ROW_MAJOR"), t.put(table, layout="ROW_MAJOR"), layout=t.ttnn.TILE_LAYOUT
        )
        t.check(out, table[ids.reshape(2, 64)])


def by_index(t: Env) -> None:
    ttnn, x, source = t.ttnn, t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 32)
    index = torch.rand(1, 1, 32, 64, generator=t.random).argsort(-1)[..., :32]
    on_mesh = t.put(index.to(torch.int32), dtype="uint32")
    t.check(ttnn.gather(t.put(x), 3, on_mesh), x.gather(3, index))
    rows = [t.put(value, layout="ROW_MAJOR") for value in (x, source)]
    places = t.put(index.to(torch.int32), dtype="int32", layout="ROW_MAJOR")
    t.check(ttnn.scatter(rows[0], 3, places, rows[1]), x.scatter(3, index, source))


CASES = collect(globals())
