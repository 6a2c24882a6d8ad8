"""Programs whose kernels read padding of tiles as if it were data, on a 2x4 mesh; see ``mistakes``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.tt_impl.env import Env

NOBODY = -float("inf")
"""What hides a key."""


def put(t: Env, value: torch.Tensor, padding: float = 0.0) -> Any:
    ttnn = t.ttnn
    return ttnn.from_torch(
        value, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=t.device, pad_value=padding,
        mesh_mapper=ttnn.ReplicateTensorToMesh(t.device),
    )  # fmt: skip


def first(t: Env, tensor: Any) -> torch.Tensor:
    return t.ttnn.to_torch(t.ttnn.get_device_tensors(tensor)[0]).float()


def pcc(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def mask_of_attention(t: Env, wrong: bool) -> None:
    """tt-metal #54833: zeros beyond the 40 columns of a mask let 24 keys in that nobody has: PCC 0.84."""
    q, k, v = (t.rand(1, heads, 40, 64) for heads in (4, 2, 2))
    mask = torch.full((1, 1, 40, 40), -1e9).triu(1)
    out = t.ttnn.transformer.scaled_dot_product_attention(  # here
        put(t, q), put(t, k), put(t, v), attn_mask=put(t, mask, 0.0 if wrong else NOBODY), is_causal=False
    )
    wanted = F.scaled_dot_product_attention(q, *(x.repeat_interleave(2, 1) for x in (k, v)), is_causal=True)
    likeness = pcc(first(t, out), wanted)
    assert likeness < 0.9 if wrong else likeness > 0.999, likeness


def mask_of_a_slice(t: Env, wrong: bool) -> None:
    """Nobody knows what a slice leaves beyond its columns: a note."""
    ttnn = t.ttnn
    q, k, v = (put(t, t.rand(1, 2, 40, 64)) for _ in range(3))
    mask = ttnn.slice(put(t, torch.zeros(1, 1, 40, 64)), [0, 0, 0, 0], [1, 1, 40, 40])
    if not wrong:
        mask = ttnn.fill_implicit_tile_padding(mask, NOBODY)
    first(t, ttnn.transformer.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=False))  # here


def mask_of_latent_attention(t: Env, wrong: bool) -> None:
    q, k = put(t, t.rand(1, 2, 40, 64)), put(t, t.rand(1, 1, 40, 64))
    mask = put(t, torch.zeros(1, 1, 40, 40), 0.0 if wrong else NOBODY)
    out = t.ttnn.transformer.flash_mla_prefill(q, k, head_dim_v=32, attn_mask=mask, is_causal=False)  # here
    first(t, out)


def prompt_of_joint_attention(t: Env, wrong: bool) -> None:
    """A view of the prompt's whole tiles makes twelve keys of its padding: everything is smaller, which no PCC sees."""
    ttnn = t.ttnn
    q, k, v = (t.rand(1, 2, 64, 64) for _ in range(3))
    prompt = [t.rand(1, 2, 20, 64) for _ in range(3)]
    joint = [put(t, x) for x in prompt]
    if wrong:
        views = [ttnn.reshape(x, (1, 2, 32, 64), (1, 2, 32, 64)) for x in joint[:2]]
        joint = [*views, put(t, F.pad(prompt[2], (0, 0, 0, 12)))]  # the keys are what counts
    config = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(8, 7), q_chunk_size=32, k_chunk_size=32)
    out, _ = ttnn.transformer.joint_scaled_dot_product_attention(  # here
        put(t, q), put(t, k), put(t, v), *joint, joint_strategy="rear", program_config=config
    )
    keys, values = (torch.cat(pair, 2) for pair in ((k, prompt[1]), (v, prompt[2])))
    wanted = F.scaled_dot_product_attention(q, keys, values)
    share = float((first(t, out) - wanted).norm() / wanted.norm())
    assert share > 0.05 if wrong else share < 0.02, share


def keys_while_decoding(t: Env, wrong: bool) -> None:
    """Without a position and a mask all whole tiles of the cache are seen."""
    ttnn = t.ttnn
    q, k, v = t.rand(1, 2, 8, 64), t.rand(2, 1, 48, 64), t.rand(2, 1, 48, 64)
    config = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(8, 8), q_chunk_size=32, k_chunk_size=32)
    mask = None if wrong else put(t, torch.zeros(2, 1, 8, 48), NOBODY)
    out = ttnn.transformer.scaled_dot_product_attention_decode(  # here
        put(t, q), put(t, k), put(t, v), is_causal=False, attn_mask=mask, program_config=config
    )
    rows = (0, 0, 0, 16 if wrong else 0)
    wanted = F.scaled_dot_product_attention(q[0].unsqueeze(2), *(F.pad(x, rows).expand(-1, 8, -1, -1) for x in (k, v)))
    assert pcc(first(t, out)[0], wanted.squeeze(2)) > 0.999


def blocks_of_a_cache(t: Env, wrong: bool) -> None:
    """A device looks for token 40 at the place of token 32."""
    ttnn = t.ttnn
    q = put(t, t.rand(1, 2, 64, 64))
    k, v = (put(t, t.rand(4, 2, 40 if wrong else 64, 64)) for _ in range(2))
    rows = {"layout": ttnn.ROW_MAJOR_LAYOUT, "mesh_mapper": ttnn.ReplicateTensorToMesh(t.device)}
    pages = ttnn.from_torch(torch.arange(4).reshape(1, 4), dtype=ttnn.int32, device=t.device, **rows)
    first(t, ttnn.transformer.chunked_scaled_dot_product_attention(q, k, v, pages, 0))  # here


def inner_dim(t: Env, wrong: bool) -> None:
    """A sum of 1 is added to padding, too, and 14 products of it to every result."""
    ttnn = t.ttnn
    a, b = t.rand(1, 1, 32, 50), t.rand(1, 1, 50, 32)
    left = ttnn.add(put(t, a), 1.0)
    if not wrong:
        left = ttnn.fill_implicit_tile_padding(left, 0.0)
    right = ttnn.add(put(t, b), 1.0)
    out = ttnn.experimental.minimal_matmul(left, right)  # here
    difference = first(t, out) - (a + 1) @ (b + 1)
    assert abs(difference.mean() - 14 * wrong) < 0.2
    for operation in (ttnn.matmul, ttnn.linear):  # their readers put zeros there
        assert abs((first(t, operation(left, right)) - (a + 1) @ (b + 1)).mean()) < 0.2


def inner_dim_of_shards(t: Env, wrong: bool) -> None:
    """Shards are multiplied where they lie, with what fills up their tiles, by the program for batches."""
    ttnn = t.ttnn
    a, b = t.rand(2, 1, 32, 50), t.rand(2, 1, 50, 32)
    left, right = (ttnn.add(put(t, value), 1.0) for value in (a, b))
    if not wrong:
        left = ttnn.fill_implicit_tile_padding(left, 0.0)
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))})
    shard = ttnn.ShardSpec(cores, (32, 64), ttnn.ShardOrientation.ROW_MAJOR)
    memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shard)
    config = ttnn.MatmulMultiCoreReuseProgramConfig(
        compute_with_storage_grid_size=(2, 1), in0_block_w=2, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=1,
    )  # fmt: skip
    out = ttnn.matmul(ttnn.to_memory_config(left, memory), right, program_config=config)  # here
    assert abs((first(t, out) - (a + 1) @ (b + 1)).mean() - 14 * wrong) < 0.2


def sharded_softmax(t: Env, wrong: bool) -> None:
    ttnn = t.ttnn
    core = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))})
    shard = ttnn.ShardSpec(core, (64, 96), ttnn.ShardOrientation.ROW_MAJOR)
    memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shard)
    config = ttnn.SoftmaxShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(1, 1), subblock_w=1, block_h=2, block_w=3
    )
    x = ttnn.to_memory_config(put(t, torch.zeros(1, 1, 64, 80), 0.0 if wrong else NOBODY), memory)
    out = ttnn.softmax_in_place(x, program_config=config)  # here
    assert abs(first(t, out).sum(-1) - (80 / 96 if wrong else 1)).max() < 0.01


def sums_of_squares(t: Env, wrong: bool) -> None:
    """The first step of Wan's distributed norm adds up whole tiles."""
    ttnn = t.ttnn
    x = ttnn.add(put(t, torch.zeros(1, 1, 32, 50)), 1.0)
    if not wrong:
        x = ttnn.fill_implicit_tile_padding(x, 0.0)
    out = ttnn.experimental.wan_fused_rmsnorm_pre_allgather(x)  # here
    assert first(t, out)[0, 0, 0, 0] == (64 if wrong else 50)


EXPECTED = {
    "mask_of_attention": ("tile-padding", "ttnn.transformer.scaled_dot_product_attention"),
    "mask_of_a_slice": ("tile-padding", "ttnn.transformer.scaled_dot_product_attention"),
    "mask_of_latent_attention": ("tile-padding", "ttnn.transformer.flash_mla_prefill"),
    "prompt_of_joint_attention": ("tile-padding", "ttnn.transformer.joint_scaled_dot_product_attention"),
    "keys_while_decoding": ("tile-padding", "ttnn.transformer.scaled_dot_product_attention_decode"),
    "blocks_of_a_cache": ("tile-padding", "ttnn.transformer.chunked_scaled_dot_product_attention"),
    "inner_dim": ("tile-padding", "ttnn.experimental.minimal_matmul"),
    "inner_dim_of_shards": ("tile-padding", "ttnn.matmul"),
    "sharded_softmax": ("tile-padding", "ttnn.softmax_in_place"),
    "sums_of_squares": ("tile-padding", "ttnn.experimental.wan_fused_rmsnorm_pre_allgather"),
}
