"""Collectives over dims, axes and shapes; every device holds other values, and expectations are written per device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import drawn, spread

AXES = st.sampled_from([0, 1])
SHAPES = st.sampled_from([(1, 1, 32, 64), (2, 3, 64, 32), (1, 2, 33, 50)])


def _over(t: Env, axis: int, parts: list[Tensor], value: Callable[[list[Tensor], int], Tensor]) -> list[Tensor]:
    """``value(parts of the group, place in it)`` for every device."""
    result: list[Any] = [None] * t.n
    for group in t.groups(axis):
        for place, device in enumerate(group):
            result[device] = value([parts[i] for i in group], place)
    return result


@drawn(10, shape=SHAPES, axis=AXES, dim=st.integers(-4, 3))
def all_gathers(t: Env, shape: tuple, axis: int, dim: int) -> None:
    x, parts = spread(t, *shape)
    wanted = _over(t, axis, parts, lambda group, _: torch.cat(group, dim))
    t.check(t.ttnn.all_gather(x, dim, cluster_axis=axis), wanted)


@drawn(
    10, rows=st.sampled_from([128, 256]), columns=st.sampled_from([128, 384]), axis=AXES, dim=st.sampled_from([2, 3])
)
def reduce_scatters(t: Env, rows: int, columns: int, axis: int, dim: int) -> None:
    x, parts = spread(t, 1, 2, rows, columns)
    count = t.shape[axis]
    wanted = _over(t, axis, parts, lambda group, place: sum(group).chunk(count, dim)[place])
    t.check(t.ttnn.reduce_scatter(x, dim, cluster_axis=axis), wanted, ulps=2)


@drawn(6, shape=SHAPES, axis=AXES)
def all_reduces(t: Env, shape: tuple, axis: int) -> None:
    x, parts = spread(t, *shape)
    t.check(t.ttnn.all_reduce(x, cluster_axis=axis), _over(t, axis, parts, lambda group, _: sum(group)), ulps=2)


@drawn(6, shape=SHAPES, axis=AXES)
def everybody_sends(t: Env, shape: tuple, axis: int) -> None:
    x, parts = spread(t, *shape)
    outputs = t.ttnn.all_broadcast(x, cluster_axis=axis)
    assert len(outputs) == t.shape[axis]
    for place, out in enumerate(outputs):
        t.check(out, _over(t, axis, parts, lambda group, _, p=place: group[p]))


@drawn(6, shape=SHAPES, row=st.integers(0, 1), column=st.integers(0, 3), axis=AXES)
def one_sends(t: Env, shape: tuple, row: int, column: int, axis: int) -> None:
    """The sender's group gets its values; in the other groups the device in the same place sends."""
    x, parts = spread(t, *shape)
    out = t.ttnn.broadcast(x, t.ttnn.MeshCoordinate(row, column), cluster_axis=axis, topology=t.linear)
    place = (row, column)[axis]
    t.check(out, _over(t, axis, parts, lambda group, _: group[place]))


@drawn(6, axis=AXES, dim=st.sampled_from([1, 2, 3, -1]))
def partitions(t: Env, axis: int, dim: int) -> None:
    x, parts = spread(t, 1, 8, 128, 128)
    t.check(t.ttnn.mesh_partition(x, dim, axis), _over(t, axis, parts, lambda g, p: g[p].chunk(t.shape[axis], dim)[p]))


@drawn(6, axis=AXES, split=st.sampled_from([1, 2]))
def exchanges(t: Env, axis: int, split: int) -> None:
    """Cut along one dim, joined along the other."""
    x, parts = spread(t, 1, 8, 128, 64)
    joined, count = 3 - split, t.shape[axis]
    out = t.ttnn.experimental.all_to_all_async_generic(x, joined, split, topology=t.linear, cluster_axis=axis)
    wanted = _over(t, axis, parts, lambda group, p: torch.cat([g.chunk(count, split)[p] for g in group], joined))
    t.check(out, wanted)


def sums_everywhere(t: Env) -> None:
    """The overloads of the asynchronous all-reduce that take an axis."""
    ttnn = t.ttnn
    for axis in (0, 1):
        x, parts = spread(t, 1, 1, 64, 256)
        out = ttnn.experimental.all_reduce_async(
            x, cluster_axis=axis, mesh_device=t.device, barrier_semaphores=t.semaphores(2),
            rs_global_semaphores=t.semaphores(3), ag_global_semaphores=t.semaphores(2),
            math_op=ttnn.ReduceType.Sum, num_links=1, topology=t.linear,
        )  # fmt: skip
        t.check(out, _over(t, axis, parts, lambda group, _: sum(group)), ulps=2)


@drawn(4, axis=AXES, experts=st.sampled_from([2, 3]), dim=st.sampled_from([1, 2]))
def tokens_to_experts_and_back(t: Env, axis: int, experts: int, dim: int) -> None:
    """Expert e multiplies by e + 2; every token gets back, from each of its experts in the group, its multiple."""
    ttnn = t.ttnn
    batch, length, hidden, chosen, total = 2, 3, 64, 4, experts * t.n
    x, parts = spread(t, batch, 1, length, hidden)
    x = ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)
    shape = (t.shape[0] * batch, t.shape[1], length)
    picks = torch.rand(*shape, total, generator=t.random).argsort(-1)[..., :chosen].int()
    picks_of = t.shards(picks, (0, 1))
    owner = torch.randperm(total, generator=t.random) % t.n
    mapping = torch.nn.functional.one_hot(owner, t.n).view(1, 1, total, t.n).int()
    common = dict(dtype="uint16", layout="ROW_MAJOR")
    where = t.put(mapping, **common)
    sent, told = ttnn.all_to_all_dispatch(
        x, t.put(picks, (0, 1), **common), where, cluster_axis=axis, output_concat_dim=dim, topology=t.linear
    )
    flat, flat_picks = [p[:, 0] for p in parts], [p[:, 0] for p in picks_of]
    tokens = _over(t, axis, flat, lambda group, _: torch.cat(group, dim - 1).unsqueeze(0))
    choices = _over(t, axis, flat_picks, lambda group, _: torch.cat(group, dim - 1).unsqueeze(0))
    t.check(told, choices)
    for device, value in enumerate(t.shadow.values(sent)):
        mine = (owner[choices[device].long()] == device).any(-1)
        assert torch.equal(value[mine], tokens[device][mine]) and value[~mine].isnan().all()
    _back(t, (tokens, choices, owner, where, told), axis, dim)


def _back(t: Env, sent: tuple, axis: int, dim: int) -> None:
    tokens, choices, owner, where, told = sent
    made = [torch.cat([tokens[d] * (int(e) + 2) for e in (owner == d).nonzero()]) for d in range(t.n)]
    stacked = torch.stack(made).unflatten(0, t.shape)
    whole = torch.cat([torch.cat(list(row), 1) for row in stacked], 0)
    out = t.ttnn.all_to_all_combine(
        t.put(whole, (0, 1), layout="ROW_MAJOR"), told, where, cluster_axis=axis, output_shard_dim=dim,
        topology=t.linear,
    )  # fmt: skip
    for group in t.groups(axis):
        for place, device in enumerate(group):
            experts = choices[device].long().movedim(-1, 0)[:, 0]
            wanted = (tokens[device] * (experts + 2).unsqueeze(-1)).chunk(len(group), dim)[place]
            near = torch.isin(owner[experts], torch.tensor(group)).chunk(len(group), dim)[place]
            value = t.shadow.values(out)[device]
            torch.testing.assert_close(value[near], wanted[near].bfloat16().float(), rtol=0.01, atol=0.01)
            assert value[~near].isnan().all()


CASES = collect(globals())
