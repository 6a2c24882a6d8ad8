"""What is written in place or into a tensor of the caller's: it and the result are one, other views see it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect, raises


def _into(t: Env, target: Any, result: Any, expected: Tensor, ulps: float = 1.0) -> None:
    """``result`` is the tensor that was given, and it holds ``expected``."""
    assert result.buffer_unique_id() == target.buffer_unique_id()
    t.check(target, expected, ulps)
    t.check(result, expected, ulps)


def outputs_of_the_caller(t: Env) -> None:
    ttnn, x, y = t.ttnn, t.rand(1, 1, 64, 64), t.rand(1, 1, 64, 64)
    a, b, into = t.put(x), t.put(y), t.empty(1, 1, 64, 64)
    _into(t, into, ttnn.add(a, b, output_tensor=into), x + y)
    t.shadow.store.values.pop(into.buffer_unique_id())  # nobody has seen what it held, and nobody reads that
    _into(t, into, ttnn.gelu(a, output_tensor=into), F.gelu(x))
    _into(t, into, ttnn.where(a, b, a, output_tensor=into), torch.where(x != 0, y, x))
    _into(t, into, ttnn.assign(a, into), x)
    _into(t, into, ttnn.matmul(a, b, optional_output_tensor=into), x @ y)
    _into(t, into, ttnn.linear(a, b, optional_output_tensor=into), x @ y)
    _into(t, into, ttnn.zeros_like(a, optional_tensor=into), x * 0)
    wide = t.put(torch.zeros(1, 1, 64, 64), dtype="float32")
    _into(t, wide, ttnn.typecast(a, ttnn.float32, output_tensor=wide), x, 0)
    _into(t, wide, ttnn.multiply(a, b, output_tensor=wide), x * y)
    ttnn.copy(b, into)
    t.check(into, y)


def moved_into_what_the_caller_gave(t: Env) -> None:
    """By place or by name: the given tensor is no view of itself, it is written."""
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 64)
    zeros, dram = torch.zeros(1, 1, 64, 64), ttnn.DRAM_MEMORY_CONFIG
    rows, columns = (
        ttnn.create_sharded_memory_config((1, 1, 64, 64), ttnn.CoreGrid(y=y, x=3 - y), strategy)
        for y, strategy in ((2, ttnn.ShardStrategy.HEIGHT), (1, ttnn.ShardStrategy.WIDTH))
    )
    a, sharded = t.put(x), ttnn.to_memory_config(t.put(x), rows)
    for move, layout in (
        (lambda into: ttnn.interleaved_to_sharded(a, rows, preallocated_output=into), rows),
        (lambda into: ttnn.reshard(sharded, columns, into), columns),
        (lambda into: ttnn.reshard(output_tensor=into, input_tensor=sharded, output_memory_config=columns), columns),
        (lambda into: ttnn.to_memory_config(sharded, dram, None, into), dram),
        (lambda into: ttnn.to_memory_config(sharded, dram, output_tensor=into), dram),
    ):
        into = ttnn.to_memory_config(t.put(zeros), layout)
        _into(t, into, move(into), x)


def in_place(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 64)
    a = t.put(x)
    flat = ttnn.reshape(a, (64, 64))
    _into(t, a, ttnn.softmax_in_place(a), x.softmax(-1))
    t.check(flat, x.softmax(-1).reshape(64, 64))
    _into(t, flat, ttnn.multiply_(flat, 2.0), t.shadow.values(flat)[0])
    t.check(a, 2 * x.softmax(-1).bfloat16().float())


def moves(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(1, 1, 64, 64)
    t.check(ttnn.move(t.put(x)), x)
    t.check(ttnn.reallocate(t.put(x)), x)


def unstable_softmax(t: Env) -> None:
    """Without ``numeric_stable``, exponentials overflow where a device's would."""
    ttnn, x = t.ttnn, t.rand(1, 1, 32, 64)
    t.check(ttnn.softmax(t.put(x), -1, numeric_stable=False), x.softmax(-1))
    large = t.put(torch.full((1, 1, 32, 64), 200.0))
    t.check(ttnn.softmax(large, -1), torch.full((1, 1, 32, 64), 1 / 64))
    t.check(ttnn.softmax(large, -1, numeric_stable=False), torch.full((1, 1, 32, 64), float("nan")))
    assert t.shadow.values(ttnn.softmax(large, -2, numeric_stable=False))[0].isfinite().all()  # always stable


def fractions_for_integers(t: Env) -> None:
    """A result with a fraction in an integer tensor is refused: how a device rounds it is not documented."""
    from tt_impl.mock.storage.errors import ShadowError

    whole = t.put(torch.zeros(32, 32, dtype=torch.int32), dtype="int32")
    raises(ShadowError, lambda: t.shadow.store.write(whole, [torch.full((32, 32), 0.5)] * t.n, "a test"), "fraction")


CASES = collect(globals())
