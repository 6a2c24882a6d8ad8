"""Properties of gates, of what asks for special values, and of bits and pairs, by formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import agree, drawn, each, held, numbers, on_mesh, spread

INF, NAN = float("inf"), float("nan")


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def _normal(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": _sigmoid,
    "reglu": lambda x: torch.where(x > 0, x, 0.0),
    "geglu": lambda x: x * _normal(x),
    "swiglu": lambda x: x * _sigmoid(x),
}


@drawn(10, name=st.sampled_from(sorted(GATES)), shape=st.sampled_from([(1, 1, 32, 64), (2, 3, 64, 128)]),
       dim=st.sampled_from([-1, 3, None]))  # fmt: skip
def halves(t: Env, name: str, shape: tuple, dim: int | None) -> None:
    """The second half of the columns opens and closes the first."""
    x, _ = spread(t, *shape, scale=2.0)
    size = shape[-1] // 2
    out = getattr(t.ttnn, name)(x, *([] if dim is None else [dim]))
    agree(t, out, [v[..., :size] * GATES[name](v[..., size:]) for v in held(t, x)])


@drawn(6, shape=st.sampled_from([(1, 1, 32, 64), (33, 50)]), limit=st.sampled_from([0.5, 7.0]))
def limited(t: Env, shape: tuple, limit: float) -> None:
    """A gate that is a tensor of its own; the gate has a limit above, the other side two."""
    (gate, _), (up, _) = spread(t, *shape, scale=4.0), spread(t, *shape, scale=4.0)

    def clamped(g: Tensor, u: Tensor) -> Tensor:
        g, u = torch.where(g > limit, limit, g), torch.where(u.abs() > limit, limit * u.sign(), u)
        return g * _sigmoid(g) * u

    agree(t, t.ttnn.clamped_silu_glu(gate, up, limit), each(clamped, held(t, gate), held(t, up)))


SPECIAL = st.sampled_from([0.0, -0.0, 1.0, -3e38, 3e38, INF, -INF, NAN])
ASKED: dict[str, Callable[[float], bool]] = {
    "isfinite": math.isfinite,
    "isinf": math.isinf,
    "isposinf": lambda x: x == INF,
    "isneginf": lambda x: x == -INF,
    "isnan": math.isnan,
}


@drawn(10, name=st.sampled_from(sorted(ASKED)), dtype=st.sampled_from(["bfloat16", "float32"]),
       values=st.lists(SPECIAL, min_size=4, max_size=9))  # fmt: skip
def special_values(t: Env, name: str, dtype: str, values: list[float]) -> None:
    """Every device has the values in an order of its own."""
    order = [values[i:] + values[:i] for i in range(len(values))]
    parts = iter(range(t.n))
    x = on_mesh(t, lambda: torch.tensor(order[next(parts) % len(values)]).repeat(3, 1), dtype)
    wanted = [torch.tensor([[float(ASKED[name](v)) for v in row] for row in part.tolist()]) for part in held(t, x)]
    agree(t, getattr(t.ttnn, name)(x), wanted)


@drawn(6, shape=st.sampled_from([(32, 32), (2, 33, 50)]), low=st.sampled_from([-(2**31), -9, 0]))
def bits(t: Env, shape: tuple, low: int) -> None:
    """All bits turned around are the number's negative, less one."""
    x = on_mesh(t, lambda: torch.randint(low, 2**31 - 1, shape, generator=t.random).int(), "int32")
    agree(t, t.ttnn.bitwise_not(x), [-v - 1 for v in held(t, x)])


@drawn(6, shape=st.sampled_from([(32, 32), (2, 33, 50)]), dtype=st.sampled_from(["bfloat16", "float32"]))
def negated_in_place(t: Env, shape: tuple, dtype: str) -> None:
    x = on_mesh(t, lambda: torch.randint(-1, 2, shape, generator=t.random) * t.rand(*shape), dtype)
    wanted = [1.0 - v.abs().sign() for v in held(t, x)]
    out = t.ttnn.logical_not_(x)
    assert out.buffer_address() == x.buffer_address()
    agree(t, x, wanted)


@drawn(6, shape=st.sampled_from([(1, 1, 32, 64), (2, 3, 33, 50)]))
def pairs(t: Env, shape: tuple) -> None:
    """Neighbours as complex numbers, times i."""
    x, _ = spread(t, *shape)
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    agree(t, t.ttnn.alt_complex_rotate90(x), [(v.unflatten(-1, (-1, 2)) @ turn).flatten(-2) for v in held(t, x)])


IN_PLACE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: b + a,
    "subtract": lambda a, b: -(b - a),
    "multiply": lambda a, b: b * a,
    "divide": lambda a, b: a * b**-1.0,
    "rsub": lambda a, b: -(a - b),
    "squared_difference": lambda a, b: (b - a) ** 2,
}


@drawn(10, dtype=st.sampled_from(["bfloat16", "float32"]), data=st.data(), number=st.booleans(),
       activated=st.booleans(), name=st.sampled_from(sorted(IN_PLACE)))  # fmt: skip
def in_place(t: Env, dtype: str, data: Any, number: bool, activated: bool, name: str) -> None:
    """A row or a number that is spread over the first operand, and an activation behind."""
    a = on_mesh(t, lambda: numbers(data, (2, 33, 50), -4, 4), dtype)
    given: Any = 1.5 if number else on_mesh(t, lambda: numbers(data, (1, 1, 50), 0.5, 4), dtype)
    others = [torch.tensor(1.5, dtype=torch.float64)] * t.n if number else held(t, given)
    wanted = each(IN_PLACE[name], held(t, a), others)
    how = dict(activations=[t.ttnn.UnaryWithParam(t.ttnn.UnaryOpType.RELU)]) if activated else {}
    out = getattr(t.ttnn, f"{name}_")(a, given, **how)
    assert out.buffer_address() == a.buffer_address()
    agree(t, a, [torch.where(w > 0, w, 0.0) if activated else w for w in wanted], ulps=4)


CASES = collect(globals())
