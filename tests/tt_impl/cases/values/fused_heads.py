"""Heads split behind a sum or joined behind a gather in one operation, over the four devices of axis 1."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import spread

HEADS, SIZE, USERS = 8, 128, 32
WIDTH = (HEADS + 2) * SIZE


def cores(t: Env, columns: int, rows: int) -> Any:
    """Return a rectangle of cores from (0, 0) on."""
    ttnn = t.ttnn
    return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(columns - 1, rows - 1))})


def config(t: Env, layout: str, cores: Any, shape: tuple[int, int]) -> Any:
    """Return the memory config of a tensor in L1, ``layout`` WIDTH or HEIGHT, with shards of ``shape``."""
    ttnn = t.ttnn
    spec = ttnn.ShardSpec(cores, shape, ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(getattr(ttnn.TensorMemoryLayout, f"{layout}_SHARDED"), ttnn.BufferType.L1, spec)


def sharded(t: Env, x: Any, layout: str, cores: Any, shape: tuple[int, int], rows: bool = False) -> Any:
    """Return a tensor in shards, row-major if asked for ``rows``."""
    if rows:
        x = t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT)
    return t.ttnn.to_memory_config(x, config(t, layout, cores, shape))


def _sums(t: Env, parts: list[Tensor]) -> list[Tensor]:
    wanted = list(parts)
    for group in t.groups(1):
        for rank in group:
            wanted[rank] = torch.stack([parts[other] for other in group]).sum(0)
    return wanted


def _packets(t: Env, rows: bool = False) -> Any:
    every = cores(t, 8, 4)
    return sharded(t, t.put(torch.zeros(1, 1, 32, 512 * 32)), "WIDTH", every, (32, 512), rows)


def reduce_scatter(t: Env) -> None:
    x, parts = spread(t, 1, 1, USERS, WIDTH)
    out = t.ttnn.experimental.llama_reduce_scatter(
        sharded(t, x, "WIDTH", cores(t, 5, 4), (32, 64)), _packets(t), 3, t.semaphores(1)[0],
        t.ttnn.SubDeviceId(0), cluster_axis=1, mesh_device=t.device, num_links=1, topology=t.linear,
        memory_config=config(t, "WIDTH", cores(t, 5, 2), (32, 32)),
    )  # fmt: skip
    sums = _sums(t, parts)
    places = {rank: place for group in t.groups(1) for place, rank in enumerate(group)}
    t.check(out, [sums[rank].chunk(4, 3)[places[rank]] for rank in range(t.n)], ulps=2)


def matmul_and_reduce_scatter(t: Env) -> None:
    """A product, and beside it the sum of another tensor."""
    ttnn = t.ttnn
    ten = cores(t, 5, 2)
    x, rows = spread(t, 1, 1, 32, 640)
    weight = t.rand(1, 1, 640, 640, scale=640**-0.5)
    program = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=ttnn.CoreCoord(5, 2), in0_block_w=2, out_subblock_h=1, out_subblock_w=2,
        per_core_M=1, per_core_N=2, fuse_batch=True, fused_activation=None, mcast_in0=False, gather_in0=True,
        hop_cores=ttnn.CoreRangeSet([]),
        num_global_cb_receivers=1, untilize_out=False,
    )  # fmt: skip

    other, parts = spread(t, 1, 1, 32, 1280)
    product, summed = ttnn.experimental.llama_rs_matmul(
        sharded(t, x, "WIDTH", ten, (32, 64)), sharded(t, t.put(weight), "WIDTH", ten, (640, 64)), _packets(t), 3,
        t.semaphores(1)[0], 1, t.device, 1, ttnn.SubDeviceId(0), program_config=program, topology=t.linear,
        rs_tensor=sharded(t, other, "WIDTH", cores(t, 5, 4), (32, 64)), dtype=ttnn.bfloat16,
        memory_config_mm=config(t, "WIDTH", ten, (32, 64)), memory_config_rs=config(t, "WIDTH", ten, (32, 32)),
    )  # fmt: skip
    t.check(product, [part @ weight for part in rows], ulps=2)
    sums = _sums(t, parts)
    places = {rank: place for group in t.groups(1) for place, rank in enumerate(group)}
    t.check(summed, [sums[rank].chunk(4, 3)[places[rank]] for rank in range(t.n)], ulps=2)


def sum_of_one_of_two_products(t: Env) -> None:
    """With a second weight the first product is summed; ttnn takes such weights from a prefetcher alone."""
    from tt_impl.mock.rules.fused_heads import llama_rs_matmul
    from tt_impl.mock.rules.registry import Call

    x, rows = spread(t, 1, 1, 32, 64)
    one, other = t.rand(1, 1, 64, 256, scale=0.125), t.rand(1, 1, 64, 256, scale=0.125)
    values, *weights = (t.shadow.store.read(tensor, "") for tensor in (x, t.put(one), t.put(other)))
    call = Call("ttnn.experimental.llama_rs_matmul", (x,), {}, [x], t.shadow.store)
    first, second, summed = llama_rs_matmul(call, values, weights[0], None, 3, None, 1, second_weight_tensor=weights[1])
    products = [part @ one for part in rows]
    for out, wanted in ((first, products), (second, [part @ other for part in rows])):
        torch.testing.assert_close(out, wanted)
    sums = _sums(t, [product.bfloat16().float() for product in products])
    places = {rank: place for group in t.groups(1) for place, rank in enumerate(group)}
    torch.testing.assert_close(summed, [sums[rank].chunk(4, 3)[places[rank]] for rank in range(t.n)])


def all_reduce_with_a_buffer(t: Env) -> None:
    """The overload of the asynchronous all-reduce that takes a buffer before the axis."""
    x, parts = spread(t, 1, 1, USERS, WIDTH)
    ten = cores(t, 5, 2)
    out = t.ttnn.experimental.all_reduce_async(
        sharded(t, x, "WIDTH", cores(t, 5, 4), (32, 64)),
        sharded(t, t.put(torch.zeros(1, 1, 32, 4 * WIDTH)), "WIDTH", ten, (32, 4 * SIZE)), 1, t.device,
        t.semaphores(1)[0], memory_config=config(t, "WIDTH", ten, (32, SIZE)), topology=t.linear, num_links=1,
        subdevice_id=t.ttnn.SubDeviceId(0),
    )  # fmt: skip
    t.check(out, _sums(t, parts), ulps=2)


def _heads(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.reshape(1, -1, HEADS + 2, SIZE).split([HEADS, 1, 1], 2)


def heads_of_some_users(t: Env) -> None:
    x, parts = spread(t, 1, 1, USERS, WIDTH)
    outs = t.ttnn.experimental.llama_rs_create_heads(
        sharded(t, x, "WIDTH", cores(t, 5, 4), (32, 64), rows=True), _packets(t, rows=True), 3, t.semaphores(1)[0],
        t.ttnn.SubDeviceId(0), cluster_axis=1, mesh_device=t.device, topology=t.linear, num_links=1, num_heads=HEADS,
        num_kv_heads=1, memory_config=config(t, "WIDTH", cores(t, 5, 2), (32, 32)),
        qkv_memory_config=config(t, "HEIGHT", cores(t, 8, 4), (32, SIZE)),
    )  # fmt: skip
    sums = _sums(t, parts)
    places = {rank: place for group in t.groups(1) for place, rank in enumerate(group)}
    users = [sums[rank].chunk(4, 2)[places[rank]] for rank in range(t.n)]
    for out, wanted in zip(outs, zip(*map(_heads, users), strict=True), strict=True):
        missing = HEADS - wanted[0].shape[2]
        t.check(out, [F.pad(x, (0, 0, 0, missing), value=float("nan")) for x in wanted], ulps=2)


def heads_from_an_offset(t: Env) -> None:
    """Every column of the mesh takes eight users, from a number that its devices are given."""
    x, parts = spread(t, 1, 1, USERS, WIDTH)
    firsts = torch.tensor([[8], [0], [24], [16]], dtype=torch.int32)
    ten = cores(t, 5, 2)
    summed, *outs = t.ttnn.experimental.all_reduce_create_qkv_heads(
        sharded(t, x, "WIDTH", cores(t, 5, 4), (32, 64)),
        sharded(t, t.put(torch.zeros(1, 1, 32, 4 * WIDTH)), "WIDTH", ten, (32, 4 * SIZE)),
        batch_offset=t.put(firsts, (None, 0), dtype="int32"), cluster_axis=1, mesh_device=t.device,
        multi_device_global_semaphore=t.semaphores(1)[0], num_heads=HEADS, num_kv_heads=1, num_links=1,
        memory_config=config(t, "WIDTH", ten, (32, SIZE)), topology=t.linear, slice_size=8,
        final_memory_config=config(t, "HEIGHT", cores(t, 8, 4), (32, SIZE)), dtype=t.ttnn.bfloat16,
        subdevice_id=t.ttnn.SubDeviceId(0),
    )  # fmt: skip
    sums = _sums(t, parts)
    t.check(summed, sums, ulps=2)
    taken = [sums[rank][:, :, (first := int(firsts[rank % 4])) : first + 8] for rank in range(t.n)]
    for out, wanted in zip(outs, zip(*map(_heads, taken), strict=True), strict=True):
        t.check(out, list(wanted), ulps=2)


CASES = collect(globals())
