"""Semaphores and persistent buffers take turns: no collective gets what the one before it on its axis may still use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from refsim.base.errors import HazardError
from refsim.base.options import RunOptions
from tests.tt_impl.env import Env, collect, raises


def _contexts(t: Env) -> list[Any]:
    """Of tensor parallelism and of sequence parallelism on the two devices."""
    from tt_impl.parallel.context import Context

    options = (RunOptions.of(mesh=t.mesh.spec, parallel=parallel, backend="ttnn-mock") for parallel in ("tp2", "sp2"))
    return [Context(t.device, chosen) for chosen in options]


def _collectives(t: Env) -> list[Callable[[], Any]]:
    """One of each kind that takes semaphores, to be called again and again."""
    from tt_impl.layers.matmul import gather_matmul
    from tt_impl.parallel.halo import ImageShards, cut_image, exchange_halo
    from tt_impl.parallel.ring import ring_attention

    tp, sp = _contexts(t)
    rows, whole = tp.put(t.rand(1, 1, 64, 128), tp_dim=3), tp.put(t.rand(1, 1, 64, 128))
    weight = tp.put(t.rand(1, 1, 128, 128), tp_dim=3)
    qkv = tuple(sp.put(t.rand(1, 2, 64, 64), sp_dim=2) for _ in range(3))
    shards = ImageShards.of(sp, 12, 8)
    image = cut_image(sp, t.rand(1, 32, 12, 8), shards)
    return [
        lambda: tp.ccl.all_gather(rows, dim=3, axis=tp.tp_axis),
        lambda: tp.ccl.reduce_scatter(whole, dim=3, axis=tp.tp_axis),
        lambda: gather_matmul(tp, rows, weight),
        lambda: ring_attention(sp, qkv, logical_n=50),
        lambda: exchange_halo(sp, image, shards),
    ]


def _given(t: Env, collective: Callable[[], Any], times: int) -> dict[tuple[str, Any, int], list[Any]]:
    """By operation, argument and number in it: the semaphores and persistent buffers of every call."""
    from tt_impl.trace.intercept import intercepted

    found, semaphore = defaultdict(list), type(t.semaphores(1)[0])

    def handle(call: Any) -> Any:
        for place, value in [*enumerate(call.args), *call.kwargs.items()]:
            for number, item in enumerate(value if isinstance(value, list | tuple) else [value]):
                persistent = str(place).startswith("persistent") and item is not None
                if persistent or isinstance(item, semaphore):
                    found[call.name, place, number].append(item)
        return call.proceed()

    with intercepted(handle):
        for _ in range(times):
            collective()
    return found


def two_of_each_in_turn(t: Env) -> None:
    """What a call gets differs from what the call before it got, and is what the one before that got."""
    for collective in _collectives(t):
        given = _given(t, collective, 4)
        assert given
        for where, used in given.items():
            assert len(used) == 4, where
            assert used[0] is used[2] and used[1] is used[3] and used[0] is not used[1], where


def one_of_each_is_refused(t: Env) -> None:
    """Where the second call would get what the first one may still use."""
    from tt_impl.parallel import manager

    manager.SLOTS, before = 1, manager.SLOTS
    try:
        for collective in _collectives(t):
            collective()
            raises(HazardError, collective, "may still read it")
    finally:
        manager.SLOTS = before


CASES = collect(globals())
