"""Values computed when they are read: the same ones, none that nobody reads, errors with the line of the call."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env, collect, raises


def same_values(t: Env) -> None:
    """A block of operations with an in-place write between two reads of one tensor, and a collective."""
    from tt_impl.mock.calls.shadow import shadow_values

    ttnn, x, w = t.ttnn, t.rand(1, 1, 64, 128), t.rand(128, 64)
    with shadow_values(lazy=True) as lazy:
        a, b = t.put(x, (2, None)), t.put(w)
        before = ttnn.gelu(ttnn.linear(a, b))
        ttnn.add_(a, 1.0)
        after = ttnn.linear(a, b)
        total = ttnn.all_reduce(after, cluster_axis=1)
        view = ttnn.reshape(after, (32, 64))
        for tensor in (before, after, total, view, a):
            for value, wanted in zip(lazy.values(tensor), t.shadow.values(tensor), strict=True):
                assert value.equal(wanted)
    rows = t.shards(x, (2, None))
    t.check(before, [F.gelu((row @ w).bfloat16().float()) for row in rows])
    t.check(view, [((row + 1).bfloat16().float() @ w).reshape(32, 64) for row in rows])


def unread_is_uncomputed(t: Env) -> None:
    from tt_impl.mock.calls.shadow import shadow_values

    ttnn, x = t.ttnn, t.rand(1, 1, 32, 64)
    with shadow_values(lazy=True) as lazy:
        a = t.put(x)
        read, unread = ttnn.exp(a), ttnn.exp(a)
        ttnn.gelu(unread)
        assert lazy.evaluations["ttnn.exp"] == lazy.evaluations["ttnn.gelu"] == 0
        assert lazy.values(read)[0].equal(x.exp().bfloat16().float())
        assert lazy.evaluations["ttnn.exp"] == 1
        ttnn.deallocate(a)
        assert lazy.values(unread)[0].equal(x.exp().bfloat16().float())
    assert t.shadow.evaluations["ttnn.exp"] == 2


def long_chains(t: Env) -> None:
    """Thousands of operations wait, and are computed without recursion."""
    from tt_impl.mock.calls.shadow import shadow_values

    with shadow_values(lazy=True) as lazy:
        a = t.put(torch.zeros(1, 1, 32, 32), dtype="float32")
        for _ in range(1500):
            a = t.ttnn.add(a, 1.0)
        assert lazy.values(a)[0].eq(1500).all()


def errors_name_the_line(t: Env) -> None:
    from tt_impl.mock.calls.shadow import shadow_values
    from tt_impl.mock.storage.errors import ShadowError

    ttnn = t.ttnn
    with shadow_values(lazy=True) as lazy:
        a = t.put(torch.full((32, 32), 200, dtype=torch.int32), dtype="uint16")
        fits = ttnn.multiply(a, a)
        assert lazy.values(fits)[0].eq(40000).all()
        lazy.store.write(a, [torch.full((32, 32), 300)] * t.n, "a test")
        wide = ttnn.multiply(a, a)
        raises(ShadowError, lambda: lazy.values(wide), "90000", "lazy.py:")


CASES = collect(globals())
