"""Collectives that ask for a ring of all devices."""

from __future__ import annotations

from typing import Any

import torch

from tests.tt_impl.cases.values.fused_heads import cores
from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import spread


def strided_all_gather(t: Env) -> None:
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 64, 64)
    buffer = t.empty(1, 1, 64, 64 * t.n, fill=0.0)
    out = ttnn.experimental.strided_all_gather_async(
        x, buffer, 3, t.semaphores(2), num_links=1, topology=ttnn.Topology.Ring, cluster_axis=1, mm_cores_y=2,
        mm_block_ht=1, mm_block_wt=1,
    )  # fmt: skip
    t.check(out, torch.cat(parts, 3))


def strided_reduce_scatter(t: Env) -> None:
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 64, 64 * t.n)
    out = ttnn.experimental.strided_reduce_scatter_async(
        x, None, 3, t.semaphores(3), mm_block_ht=1, mm_block_wt=1, num_links=1, topology=ttnn.Topology.Ring,
        cluster_axis=1, mm_cores_y=2, mm_N_full_block_wt=2, barrier_semaphore=t.semaphores(1)[0],
    )  # fmt: skip
    t.check(out, list(torch.stack(parts).sum(0).chunk(t.n, 3)), ulps=2)


def all_gather_matmul(t: Env) -> None:
    """What is gathered, and its product with every device's own weight."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 1, 64, 64)
    weights = t.rand(1, 1, 64 * t.n, 64 * t.n, scale=0.1)
    config: Any = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(2, 2), in0_block_w=2, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=1, transpose_mcast=False, fused_activation=None, fuse_batch=False,
    )  # fmt: skip
    buffer = t.empty(1, 1, 64, 64 * t.n, fill=0.0)
    gathered, product = ttnn.experimental.all_gather_matmul_async(
        x, t.put(weights, (None, 3)), persistent_output_buffer=buffer, dim=3,
        multi_device_global_semaphore=t.semaphores(2), all_gather_core_grid_offset=ttnn.CoreCoord(0, 4),
        num_links=1, topology=ttnn.Topology.Ring, program_config=config,
    )  # fmt: skip
    whole = torch.cat(parts, 3)
    t.check(gathered, whole)
    t.check(product, [whole @ weight for weight in weights.chunk(t.n, 3)], ulps=2)


def rows_without_a_number(t: Env) -> None:
    """Without ``ring_id`` the devices of a mesh of one row are the ring."""
    ttnn = t.ttnn
    q, k, v = (t.rand(1, 4, 64 * t.n, 64) for _ in range(3))
    program = t.sdpa_config()
    out = ttnn.transformer.ring_distributed_scaled_dot_product_attention(
        *map(t.put, (q, k, v)), ring_size=t.n, program_config=program
    )
    pieces = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).chunk(2 * t.n, 2)
    t.check(out, [torch.cat([pieces[rank], pieces[2 * t.n - 1 - rank]], 2) for rank in range(t.n)], ulps=2)


def reduced_in_pieces(t: Env) -> None:
    """A list of tensors along the columns of which every device has one in the end."""
    ttnn = t.ttnn
    pieces = [spread(t, 1, 1, 32, 128) for _ in range(t.n)]
    spec = ttnn.NdShardSpec(ttnn.Shape([1, 32, 128]), cores(t, 1, 1), ttnn.ShardOrientation.ROW_MAJOR)
    place = ttnn.MemoryConfig(ttnn.BufferType.L1, spec)
    tensors = [ttnn.to_memory_config(x, place) for x, _ in pieces]
    how = {"num_links": 1, "topology": ttnn.Topology.Ring, "cluster_axis": 1}
    reduced = ttnn.experimental.deepseek_moe_reduce_scatter
    for out in (
        reduced(tensors, output_memory_config=ttnn.DRAM_MEMORY_CONFIG, dim=3, **how),
        reduced(tensors, ttnn.DRAM_MEMORY_CONFIG, 3, **how),
    ):
        t.check(out, [torch.stack(parts).sum(0) for _, parts in pieces], ulps=2)


CASES = collect(globals())
