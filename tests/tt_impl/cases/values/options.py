"""Options of operations that no property draws, each against its definition written out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.env import Env, collect
from tests.tt_impl.properties import each, spread

SIZE, BLOCK = 64, 32


def _attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """[B, H, N, E] in float64; a row that sees nothing is NaN."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).double() for x in (k, v))
    scores = (q.double() @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    return (scores.softmax(-1) @ v).float()


def decoding_in_a_ring(t: Env) -> None:
    """The cache's blocks are a ring of 64 tokens, of which a window is seen."""
    users, ring, window, at = 2, 64, 40, [90, 20]
    table = torch.tensor([[2, 0], [3, 1]])
    (q, qs), (k, ks), (v, vs) = spread(t, 1, users, 8, SIZE), spread(t, 4, 1, BLOCK, SIZE), spread(t, 4, 1, BLOCK, SIZE)
    config = t.sdpa_config()
    out = t.ttnn.transformer.paged_scaled_dot_product_attention_decode(
        q, k, v, t.integers(table), cur_pos_tensor=t.integers(torch.tensor(at)), cache_position_modulo=ring,
        sliding_window_size=window, program_config=config,
    )  # fmt: skip

    def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = []
        for user, last in enumerate(at):
            places = [token % ring for token in range(max(0, last + 1 - window), last + 1)]
            keys, values = (
                torch.stack([cache[table[user, place // BLOCK], :, place % BLOCK] for place in places], 1)[None]
                for cache in (k, v)
            )
            every = torch.ones(1, len(places), dtype=torch.bool)
            rows.append(_attended(q[:, user].unsqueeze(2), keys, values, every).squeeze(2))
        return torch.stack(rows, 1)

    t.check(out, each(expected, qs, ks, vs), ulps=2)


def columns_from_an_offset(t: Env) -> None:
    """A product with some columns of a wider tensor."""
    (a, xs), (b, ws) = spread(t, 1, 1, 32, 128), spread(t, 64, 96, scale=0.1)
    program = t.ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(3, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=1, transpose_mcast=False, fused_activation=None,
    )  # fmt: skip
    out = t.ttnn.linear(a, b, in0_column_offset=32, program_config=program)
    t.check(out, each(lambda x, w: x[..., 32:96] @ w, xs, ws), ulps=2)


def used_experts_alone(t: Env) -> None:
    """An output with room for the products that are used."""
    ttnn, experts, used = t.ttnn, 8, [1, 4, 6]
    sparsity = torch.zeros(1, 1, 1, experts)
    sparsity[..., used] = 1.0
    a, b = t.rand(1, experts, 32, 64), t.rand(1, experts, 64, 64, scale=0.1)
    config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=ttnn.CoreCoord(2, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1,
        out_block_h=1, out_block_w=1, per_core_M=1, per_core_N=1, fuse_batch=False, fused_activation=None,
        mcast_in0=True,
    )  # fmt: skip
    out = ttnn.sparse_matmul(
        t.put(a), t.put(b), sparsity=t.put(sparsity, layout="ROW_MAJOR"), nnz=len(used), is_input_a_sparse=True,
        is_input_b_sparse=True, program_config=config, optional_output_tensor=t.empty(1, len(used), 32, 64, fill=0.0),
    )  # fmt: skip
    t.check(out, (a @ b)[:, used], ulps=2)


def slope_of_each_channel(t: Env) -> None:
    (x, xs), (w, ws) = spread(t, 2, 3, 32, 64), spread(t, 3)
    t.check(t.ttnn.prelu(x, w), each(lambda x, w: F.prelu(x, w), xs, ws), ulps=2)


def joined_by_groups(t: Env) -> None:
    """Each half of the first stands before that half of the second."""
    (a, xs), (b, ys) = (spread(t, 1, 4, 32, 64) for _ in range(2))
    a, b = (t.ttnn.to_layout(x, t.ttnn.ROW_MAJOR_LAYOUT) for x in (a, b))
    out = t.ttnn.concat([a, b], -1, groups=2)
    t.check(out, each(lambda x, y: torch.cat([x[..., :32], y[..., :32], x[..., 32:], y[..., 32:]], -1), xs, ys), ulps=0)


def squeezed_wholly(t: Env) -> None:
    x, xs = spread(t, 1, 3, 1, 64)
    t.check(t.ttnn.squeeze(x), [value[0, :, 0] for value in xs], ulps=0)
    t.check(t.ttnn.squeeze(x, [0, 2]), [value[0, :, 0] for value in xs], ulps=0)


def heads_of_some_users(t: Env) -> None:
    """Of 32 users those from an offset on, as a device of four takes them."""
    ttnn, heads, kv, users, first = t.ttnn, 8, 1, 8, 16
    columns = (heads + 2 * kv) * SIZE
    x = t.rand(1, 1, 32, columns)
    config = ttnn.create_sharded_memory_config(
        (32, columns // 10), ttnn.CoreGrid(x=5, y=2), ttnn.ShardStrategy.WIDTH, ttnn.ShardOrientation.ROW_MAJOR,
        use_height_and_width_as_shard_shape=True,
    )  # fmt: skip
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 0))})
    spec = ttnn.ShardSpec(cores, (32, SIZE), ttnn.ShardOrientation.ROW_MAJOR)
    out = ttnn.experimental.nlp_create_qkv_heads_decode(
        ttnn.to_memory_config(t.put(x), config), num_heads=heads, num_kv_heads=kv, slice_size=users,
        batch_offset=t.integers(torch.tensor([first]), "uint32"),
        memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec),
    )  # fmt: skip
    rows = x[0, 0, first : first + users].unflatten(-1, (-1, SIZE))
    for part, wanted in zip(out, rows.split([heads, kv, kv], 1), strict=True):
        t.check(part, wanted[None], ulps=0)


def statistics_on_cores(t: Env) -> None:
    """The statistics of a row that is cut over cores are means, not sums."""
    ttnn, width = t.ttnn, 64
    x, gamma = t.rand(1, 1, 32, width * t.shape[1]) + 0.5, t.rand(width * t.shape[1])
    x = x.bfloat16().float()
    config = ttnn.create_sharded_memory_config(
        (32, 32), ttnn.CoreGrid(x=2, y=1), ttnn.ShardStrategy.WIDTH, ttnn.ShardOrientation.ROW_MAJOR,
        use_height_and_width_as_shard_shape=True,
    )  # fmt: skip
    program = ttnn.LayerNormShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(2, 1), subblock_w=1, block_h=1, block_w=1, inplace=False
    )
    part = ttnn.to_memory_config(t.put(x, (None, 3)), config)
    stats = ttnn.layer_norm_pre_all_gather(part, program_config=program)
    whole = ttnn.all_gather(ttnn.to_memory_config(stats, ttnn.DRAM_MEMORY_CONFIG), 3, cluster_axis=1)
    cores = ttnn.create_sharded_memory_config(
        (whole.shape[-2], whole.shape[-1]), ttnn.CoreGrid(x=1, y=1), ttnn.ShardStrategy.WIDTH,
        ttnn.ShardOrientation.ROW_MAJOR,
        use_height_and_width_as_shard_shape=True,
    )  # fmt: skip
    out = ttnn.layer_norm_post_all_gather(
        part, ttnn.to_memory_config(whole, cores), epsilon=1e-5, weight=t.put(gamma[None], (None, 1)),
        program_config=program,
    )  # fmt: skip
    t.check(out, t.shards(F.layer_norm(x, x.shape[-1:]) * gamma, (None, 3)), ulps=8)


def counts(t: Env) -> None:
    """A count from a start given by place, and a running total of whole numbers."""
    ttnn = t.ttnn
    t.check(ttnn.arange(3, end=11, step=2, device=t.device, dtype=ttnn.int32), torch.arange(3, 11, 2))
    y, ys = spread(t, 1, 1, 32, 32, scale=4.0)
    t.check(ttnn.cumsum(y, -1, dtype=ttnn.int32), [value.trunc().long().cumsum(-1) for value in ys])


def weights_of_five_dims(t: Env) -> None:
    """Unprepared weights of a convolution of videos."""
    ttnn = t.ttnn
    x, parts = spread(t, 1, 3, 4, 5, 32)
    weight = t.rand(32, 32, 1, 3, 3, scale=0.1)
    config = ttnn.Conv3dConfig(
        weights_dtype=ttnn.bfloat16, output_layout=ttnn.ROW_MAJOR_LAYOUT, C_in_block=32,
        compute_with_storage_grid_size=t.device.compute_with_storage_grid_size(),
    )  # fmt: skip
    out = ttnn.experimental.conv3d(
        input_tensor=ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT), device=t.device,
        weight_tensor=ttnn.from_torch(weight, dtype=ttnn.bfloat16),
        config=config, dtype=ttnn.bfloat16, output_channels=32, kernel_size=(1, 3, 3),
    )  # fmt: skip
    wanted = [F.conv3d(part.movedim(-1, 1), weight).movedim(1, -1) for part in parts]
    t.check(out, wanted, ulps=2)


def constants_have_no_gradient(t: Env) -> None:
    """A step has the gradient zero everywhere."""
    (g, _), (x, xs) = spread(t, 1, 1, 32, 64), spread(t, 1, 1, 32, 64)
    for part in t.ttnn.floor_bw(g, x):
        t.check(part, [torch.zeros_like(value) for value in xs], ulps=0)


def mask_of_one_head(t: Env) -> None:
    """A causal mask of one head for the rows of two that lie after each other."""
    ttnn, heads, n = t.ttnn, 2, 32
    x, mask = t.rand(1, 1, heads * n, n), t.rand(1, 1, n, n)
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))})
    spec = ttnn.ShardSpec(cores, (heads * n, n), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    program = ttnn.SoftmaxShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(1, 1), subblock_w=1, block_h=2, block_w=1
    )
    held = ttnn.to_memory_config(t.put(x), config)
    out = ttnn.scale_causal_mask_hw_dims_softmax_in_place(held, 0.5, t.put(mask), program_config=program)
    t.check(out, (x * 0.5 + mask.repeat(1, 1, heads, 1)).softmax(-1), ulps=2)


CASES = collect(globals())
