"""Collectives: who holds what after values have crossed a mesh axis.

Ranks of a group are in order of the axis: the first one's part comes first when gathered, and it keeps the first
part when scattered. A sum is taken in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import REQUIRED, Call, across
from tt_impl.mock.storage.constants import joined
from tt_impl.mock.storage.values import Shards
from tt_impl.mock.storage.views import shared
from tt_impl.trace.collectives import arguments


def gathered(
    x: Shards, dim: int, cluster_axis: int | None, *, as_stored: bool = False, last_first: bool = False
) -> list[Tensor]:
    """Concatenate along ``dim`` over the axis, to the same tensor on all devices of a group.

    ``as_stored``: bfloat16 stays bfloat16, for operations that do nothing else with it. ``last_first``: the part of the
    last device comes first.
    """
    parts = stored(x) if as_stored else list(x)
    order = -1 if last_first else 1
    return exchanged(parts, x.groups(cluster_axis), lambda parts: [joined(parts[::order], dim)] * len(parts))


Total = Callable[[list[Tensor], int | None], Tensor]
"""Of the tensors of a group's devices and the dim along which their sum is scattered, None for none: their sum."""


def total(parts: list[Tensor], dim: int | None) -> Tensor:
    return torch.stack(parts).sum(0)


def reduced(x: Shards, cluster_axis: int | None, total: Total = total, dim: int | None = None) -> list[Tensor]:
    """Sum over the axis, to the same tensor on all devices of a group."""
    return exchanged(list(x), x.groups(cluster_axis), lambda parts: [total(parts, dim)] * len(parts))


def stored(x: Shards) -> list[Tensor]:
    """Return what every device holds in the dtype it is kept in, one tensor for devices that share it."""
    return shared(x.shaped, x.stored)


def exchanged(
    parts: Sequence[Tensor], groups: list[list[int]], exchange: Callable[[list[Tensor]], Sequence[Tensor]]
) -> list[Tensor]:
    """Have the devices of a group meet: ``exchange`` of their parts gives one tensor for each.

    It is called once for groups that hold the same parts.
    """
    result: list[Any] = [None] * len(parts)
    known: dict[tuple, Sequence[Tensor]] = {}
    for group in groups:
        key = tuple(id(parts[i]) for i in group)
        if key not in known:
            known[key] = exchange([parts[i] for i in group])
        for place, i in enumerate(group):
            result[i] = known[key][place]
    return result


def sent(x: Shards, groups: list[list[int]], place: int) -> list[Tensor]:
    """Give all devices of a group what the device in that place of it holds."""
    return exchanged(list(x), groups, lambda parts: [parts[place]] * len(parts))


def scattered(x: Sequence[Tensor], groups: list[list[int]], dim: int) -> list[Tensor]:
    """Cut what each device holds along ``dim``, and leave it the part of its place in the group."""
    result: list[Any] = [None] * len(x)
    cut: dict[int, Sequence[Tensor]] = {}
    for group in groups:
        for place, i in enumerate(group):
            if id(x[i]) not in cut:
                cut[id(x[i])] = torch.chunk(x[i], len(group), dim)
            result[i] = cut[id(x[i])][place]
    return result


def reduced_and_scattered(x: Shards, cluster_axis: int | None, dim: int, total: Total = total) -> list[Tensor]:
    """Sum over the axis and leave each device its part along ``dim``."""
    return scattered(reduced(x, cluster_axis, total, dim), x.groups(cluster_axis), dim)


@across("all_gather")
def all_gather(call: Call, input_tensor: Shards, dim: int, *, cluster_axis: int | None = None) -> list[Tensor]:
    return gathered(input_tensor, dim, cluster_axis, as_stored=True)


@across("experimental.all_gather_async", "experimental.all_gather_async_reversed")
def all_gather_async(
    call: Call, input_tensor: Shards, *args: Any, dim: int | None = None, cluster_axis: int | None = None
) -> list[Tensor]:
    """Gather by (x, dim, semaphores), (x, buffer, dim, semaphores), (x, dim, axis, mesh, topology, semaphores)."""
    named = arguments(call)
    last_first = call.name.endswith("_reversed")
    return gathered(input_tensor, named["dim"], named.get("cluster_axis"), as_stored=True, last_first=last_first)


@across("reduce_scatter")
def reduce_scatter(
    call: Call, input_tensor: Shards, dim: int, *, cluster_axis: int | None = None, total: Total = total
) -> list[Tensor]:
    return reduced_and_scattered(input_tensor, cluster_axis, dim, total)


@across("experimental.reduce_scatter_minimal_async")
def reduce_scatter_minimal_async(
    call: Call,
    input_tensor: Shards,
    *args: Any,
    dim: int | None = None,
    cluster_axis: int | None = None,
    total: Total = total,
) -> list[Tensor]:
    """Reduce, also by (x, buffers, dim, semaphores); the intermediate buffer is left with what nobody may read."""
    named = arguments(call)
    for buffer in list(named.get("persistent_output_buffers") or [])[:-1]:
        call.leave_to_nobody(buffer, len(input_tensor))
    return reduced_and_scattered(input_tensor, cluster_axis, named["dim"], total)


@across("experimental.deepseek_moe_reduce_scatter")
def deepseek_moe_reduce_scatter(
    call: Call,
    input_tensors: list[Shards],
    _memory_config: Any = None,
    dim: int = REQUIRED,
    cluster_axis: int | None = None,
    *,
    total: Total = total,
) -> list[Tensor]:
    """Reduce and scatter tensors that come cut along ``dim``."""
    groups = input_tensors[0].groups(cluster_axis)
    whole = call.each(lambda *parts: torch.cat(parts, dim), *input_tensors)
    sums = exchanged(whole, groups, lambda parts: [total(parts, dim)] * len(parts))
    return scattered(sums, groups, dim)


@across("all_reduce")
def all_reduce(
    call: Call, input_tensor: Shards, *, cluster_axis: int | None = None, total: Total = total
) -> list[Tensor]:
    return reduced(input_tensor, cluster_axis, total)


@across("all_broadcast")
def all_broadcast(call: Call, input_tensor: Shards, *, cluster_axis: int | None = None) -> tuple[list[Tensor], ...]:
    """Return an output per rank of the axis: what that rank held."""
    groups = input_tensor.groups(cluster_axis)
    return tuple(sent(input_tensor, groups, place) for place in range(input_tensor.ring_size(cluster_axis)))


@across("mesh_partition")
def mesh_partition(call: Call, input_tensor: Shards, dim: int, cluster_axis: int | None = None) -> list[Tensor]:
    return scattered(list(input_tensor), input_tensor.groups(cluster_axis), dim)


@across("experimental.ring_attention_all_gather_async")
def ring_attention_all_gather_async(
    call: Call, input_tensor: Sequence[Shards], _buffers: Any = None, dim: int = REQUIRED, *, cluster_axis: int
) -> tuple[list[Tensor], ...]:
    """Gather several tensors in one go: K and V of ring attention."""
    return tuple(gathered(x, dim, cluster_axis, as_stored=True) for x in input_tensor)


@across("experimental.neighbor_pad_async")
def neighbor_pad_async(
    call: Call,
    input_tensor: Shards,
    dim: Sequence[int],
    padding_left: Sequence[int],
    padding_right: Sequence[int],
    padding_mode: str,
    cluster_axis: Sequence[int],
    *_semaphores: Any,
    logical_h: int = 0,
    t_front_pad: int = 0,
) -> list[Tensor]:
    """Pad with rows of the neighbours before and after along each dim; at the ends with zeros, or the last row again.

    The second dim is padded after the first, so that corners come from the neighbour across. Rows of the first dim
    from ``logical_h`` on, counted over the axis, come out as zeros, but neighbours get them as they are. Frames of
    zeros before the first are ``t_front_pad`` rows of the dim before the first.
    """
    result = stored(input_tensor)
    for number, (d, left, right, axis) in enumerate(zip(dim, padding_left, padding_right, cluster_axis, strict=True)):
        groups = input_tensor.groups(axis)
        size = result[0].shape[d]
        pad = partial(_with_neighbours, dim=d, left=left, right=right, padding_mode=padding_mode)
        result = exchanged(result, groups, pad)
        if logical_h and number == 0:
            result = exchanged(result, groups, partial(_without_rows, dim=d, left=left, size=size, end=logical_h))
    if t_front_pad:
        after = [0, 0] * (len(input_tensor.shape) - dim[0])
        result = call.each(lambda x: F.pad(x, (*after, t_front_pad, 0)), result)
    return result


def _without_rows(row: list[Tensor], dim: int, left: int, size: int, end: int) -> list[Tensor]:
    """Zero, in padded tensors of a row, those of their own ``size`` rows that number ``end`` or more."""
    result = []
    for place, x in enumerate(row):
        rows = min(max(end - place * size, 0), size)
        x = x.clone()
        x.narrow(dim, left + rows, size - rows).zero_()
        result.append(x)
    return result


def _with_neighbours(row: list[Tensor], dim: int, left: int, right: int, padding_mode: str) -> list[Tensor]:
    """Pad each of a row of tensors with the last ``left`` rows of the one before and ``right`` rows of the next."""
    size = row[0].shape[dim]
    result = []
    for place, x in enumerate(row):
        before = row[place - 1].narrow(dim, size - left, left) if place else _edge(x, dim, 0, left, padding_mode)
        if place < len(row) - 1:
            after = row[place + 1].narrow(dim, 0, right)
        else:
            after = _edge(x, dim, size - 1, right, padding_mode)
        result.append(torch.cat([before, x, after], dim))
    return result


def _edge(x: Tensor, dim: int, row: int, count: int, padding_mode: str) -> Tensor:
    edge = x.narrow(dim, row, 1).repeat_interleave(count, dim)
    return edge if padding_mode == "replicate" else torch.zeros_like(edge)


@across("experimental.slice_reshard_async")
def slice_reshard_async(
    call: Call,
    input_tensor: Shards,
    dim: int,
    output_dim_offset: int,
    output_dim_shape: int,
    cluster_axis: int,
    *_semaphores: Any,
) -> list[Tensor]:
    """Cut rows of the whole anew over the axis: ``output_dim_shape`` of them, from ``output_dim_offset`` on."""
    whole = gathered(input_tensor, dim, cluster_axis)
    rows = call.each(lambda x: x.narrow(dim, output_dim_offset, output_dim_shape), whole)
    return scattered(rows, input_tensor.groups(cluster_axis), dim)


@across("experimental.all_to_all_async_generic")
def all_to_all_async_generic(
    call: Call, input_tensor: Shards, in_dim: int, out_dim: int, *, cluster_axis: int | None = None
) -> list[Tensor]:
    """Cut along ``out_dim``, exchange, join along ``in_dim``: in_dim was sharded, out_dim is afterwards."""

    def exchange(parts: list[Tensor]) -> list[Tensor]:
        cut = [torch.chunk(part, len(parts), out_dim) for part in parts]
        return [torch.cat(received, in_dim) for received in zip(*cut, strict=True)]

    return exchanged(list(input_tensor), input_tensor.groups(cluster_axis), exchange)
