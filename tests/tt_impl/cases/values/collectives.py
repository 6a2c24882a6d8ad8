"""Collectives along both axes of the mesh; values differ from device to device everywhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.tt_impl.env import Env, collect

AXES = (0, 1)


def _different(t: Env, *shape: int) -> tuple[Any, list[Tensor]]:
    """A tensor of ``shape`` per device, all different: on the mesh, and as a list."""
    rows, columns = t.shape
    whole = t.rand(rows, columns, *shape)
    on_mesh = t.put(whole, (0, 1))
    reshaped = t.ttnn.reshape(on_mesh, shape)
    return reshaped, [whole[row, column] for row in range(rows) for column in range(columns)]


def _gathered(t: Env, parts: list[Tensor], dim: int, axis: int) -> list[Tensor]:
    result: list[Any] = [None] * len(parts)
    for group in t.groups(axis):
        for i in group:
            result[i] = torch.cat([parts[j] for j in group], dim)
    return result


def _summed(t: Env, parts: list[Tensor], axis: int) -> list[Tensor]:
    result: list[Any] = [None] * len(parts)
    for group in t.groups(axis):
        for i in group:
            result[i] = sum(parts[j] for j in group)
    return result


def _part(t: Env, parts: list[Tensor], dim: int, axis: int) -> list[Tensor]:
    """Of what each device has, the piece at its own place along the axis."""
    return [part.chunk(t.shape[axis], dim)[divmod(i, t.shape[1])[axis]] for i, part in enumerate(parts)]


def all_gather(t: Env) -> None:
    for axis in AXES:
        for dim in (2, 3):
            x, parts = _different(t, 1, 1, 64, 128)
            wanted = _gathered(t, parts, dim, axis)
            t.check(t.ttnn.all_gather(x, dim, cluster_axis=axis), wanted)
            out = t.empty(*wanted[0].shape)
            t.ttnn.all_gather(x, dim=dim, cluster_axis=axis, output_tensor=out)
            t.check(out, wanted)


def all_gather_async(t: Env) -> None:
    """The two overloads that take an axis; the persistent buffer holds the result."""
    ttnn, gather = t.ttnn, t.ttnn.experimental.all_gather_async
    pair, barrier = t.semaphores(2), t.semaphores(1)[0]
    common = dict(num_links=1, barrier_semaphore=barrier)
    for axis in AXES:
        x, parts = _different(t, 1, 1, 64, 128)
        wanted = _gathered(t, parts, 3, axis)
        buffer = t.empty(*wanted[0].shape)
        out = gather(
            x, persistent_output_buffer=buffer, dim=3, multi_device_global_semaphore=pair, num_links=1,
            topology=t.linear, cluster_axis=axis,
        )  # fmt: skip
        assert out.tensor_id == buffer.tensor_id
        t.check(buffer, wanted)
        t.check(gather(x, None, 3, pair, topology=t.linear, cluster_axis=axis, **common), wanted)
        t.check(gather(x, 3, axis, t.device, ttnn.Topology.Linear, pair, **common), wanted)


def reduce_scatter(t: Env) -> None:
    ttnn = t.ttnn
    for axis in AXES:
        for dim in (2, 3):
            x, parts = _different(t, 1, 1, 128, 256)
            wanted = _part(t, _summed(t, parts, axis), dim, axis)
            t.check(ttnn.reduce_scatter(x, dim, cluster_axis=axis, topology=t.linear), wanted)


def reduce_scatter_async(t: Env) -> None:
    reduce = t.ttnn.experimental.reduce_scatter_minimal_async
    for axis in AXES:
        x, parts = _different(t, 1, 1, 64, 256)
        wanted = _part(t, _summed(t, parts, axis), 3, axis)
        common = dict(num_links=1, topology=t.linear, cluster_axis=axis)
        intermediate, out = t.empty(2, 1, 64, 256, fill=0.0), t.empty(*wanted[0].shape)
        reduce(x, [intermediate, out], 3, t.semaphores(3), **common)
        t.check(out, wanted)
        assert all(value.isnan().all() for value in t.shadow.values(intermediate))  # nobody may read it
        barrier = t.semaphores(1)[0]
        plain = reduce(
            x, persistent_output_buffers=None, dim=3, multi_device_global_semaphore=t.semaphores(3),
            barrier_semaphore=barrier, **common,
        )  # fmt: skip
        t.check(plain, wanted)


def all_reduce(t: Env) -> None:
    for axis in AXES:
        x, parts = _different(t, 1, 1, 64, 128)
        t.check(t.ttnn.all_reduce(x, cluster_axis=axis), _summed(t, parts, axis))


def all_broadcast(t: Env) -> None:
    for axis in AXES:
        x, parts = _different(t, 1, 1, 32, 64)
        outputs = t.ttnn.all_broadcast(x, cluster_axis=axis, topology=t.linear)
        for place, out in enumerate(outputs):
            wanted: list[Any] = [None] * t.n
            for group in t.groups(axis):
                for i in group:
                    wanted[i] = parts[group[place]]
            t.check(out, wanted)


def mesh_partition(t: Env) -> None:
    for axis in AXES:
        x, parts = _different(t, 1, 1, 64, 128)
        t.check(t.ttnn.mesh_partition(x, 3, axis), _part(t, parts, 3, axis))


def ring_attention_all_gather(t: Env) -> None:
    for axis in AXES:
        (k, k_parts), (v, v_parts) = _different(t, 1, 4, 64, 64), _different(t, 1, 4, 64, 64)
        buffers = [t.empty(1, 4, 64 * t.shape[axis], 64) for _ in range(2)]
        outputs = t.ttnn.experimental.ring_attention_all_gather_async(
            [k, v], buffers, 2, multi_device_global_semaphore=t.semaphores(2), num_links=1, cluster_axis=axis,
            mesh_device=t.device, topology=t.linear, subdevice_id=t.ttnn.SubDeviceId(0),
        )  # fmt: skip
        for parts, buffer, out in zip((k_parts, v_parts), buffers, outputs, strict=True):
            t.check(out, _gathered(t, parts, 2, axis))
            t.check(buffer, _gathered(t, parts, 2, axis))


def all_to_all(t: Env) -> None:
    """Ulysses: tokens cut to heads cut and back, checked on the whole tensor."""
    exchange = t.ttnn.experimental.all_to_all_async_generic
    for axis in AXES:
        whole = t.rand(1, 8, 256, 64)
        dims = (2, None) if axis == 0 else (None, 2)
        common = dict(num_links=1, topology=t.linear, cluster_axis=axis)
        by_head = exchange(t.put(whole, dims), 2, 1, **common)
        t.check(by_head, t.shards(whole, (1, None) if axis == 0 else (None, 1)))
        t.check(exchange(by_head, 1, 2, **common), t.shards(whole, dims))


def stale_ping_pong(t: Env) -> None:
    """Whoever reads a persistent buffer after it was given out again gets what is in it then."""
    gather, buffer = t.ttnn.experimental.all_gather_async, t.empty(1, 1, 32, 256)
    results = []
    for _ in range(2):
        x, parts = _different(t, 1, 1, 32, 64)
        gather(x, persistent_output_buffer=buffer, dim=3, multi_device_global_semaphore=t.semaphores(2),
               num_links=1, topology=t.linear, cluster_axis=1)  # fmt: skip
        results.append(_gathered(t, parts, 3, 1))
    t.check(buffer, results[1])


def scores_of_the_experts_of_a_device(t: Env) -> None:
    """Each device gets the scores of its own experts, where a token chose them, and which of them any token did."""
    ttnn, tokens, chosen, total, chunk = t.ttnn, 16, 2, 2 * t.n, 8
    scores = t.rand(1, tokens // 2, 2, total).abs() + 0.5
    picks = torch.rand(*scores.shape, generator=t.random).argsort(-1)[..., :chosen]
    owner = torch.arange(total) % t.n
    mapping = torch.nn.functional.one_hot(owner, t.n).view(1, 1, total, t.n)
    rows = dict(dtype="uint16", layout="ROW_MAJOR")
    mapped, reduced = ttnn.moe_expert_token_remap(
        t.put(scores, layout="ROW_MAJOR"),
        t.put(mapping.int(), **rows),
        t.put(picks.int(), **rows),
        reduction_size=chunk,
    )
    expected = []
    for device in range(t.n):
        mine = (owner == device).nonzero().flatten()
        wanted = (picks.unsqueeze(-1) == mine).any(-2)
        expected.append(torch.where(wanted, scores[..., mine], 0.0))
    t.check(mapped, expected)
    t.check(reduced, [(part.reshape(1, 1, -1, chunk, 2) > 0).any(3).long() for part in expected])


CASES = collect(globals())
