"""Heads, rotary embeddings and attention against torch on the whole sequence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tt_impl.cases.values.norm import _rope, _rotated
from tests.tt_impl.env import Env, collect, raises

sdpa = F.scaled_dot_product_attention


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.shape[0], -1, heads, x.shape[-1] // heads).transpose(1, 2)


def _three(t: Env, outputs: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
    for out, wanted in zip(outputs, (q, k, v), strict=True):
        t.check(out, wanted)


def create_heads(t: Env) -> None:
    ttnn, x, y = t.ttnn, t.rand(2, 1, 64, 768), t.rand(2, 1, 64, 512)
    create = ttnn.experimental.nlp_create_qkv_heads
    q, k, v = (_split(part, 4) for part in x.chunk(3, -1))
    _three(t, create(t.put(x), num_heads=4, transpose_k_heads=False), q, k, v)
    _three(t, create(t.put(x), num_heads=4), q, k.mT, v)
    alone = t.rand(2, 1, 64, 256)
    outputs = create(t.put(alone), t.put(y), num_heads=4, num_kv_heads=4, transpose_k_heads=False)
    _three(t, outputs, _split(alone, 4), *(_split(part, 4) for part in y.chunk(2, -1)))


def create_heads_of_queries_only(t: Env) -> None:
    """Cross-attention splits Q alone: K and V come out without heads, whatever order was asked for."""
    x = t.rand(2, 1, 64, 512)
    for transposed in (False, True):
        q, k, v = t.ttnn.experimental.nlp_create_qkv_heads(
            t.put(x), num_heads=4, num_kv_heads=0, transpose_k_heads=transposed
        )
        t.check(q, _split(x, 4))
        assert [tuple(value.shape) for value in t.shadow.values(k) + t.shadow.values(v)] == [
            *[(2, 0, 128, 64) if transposed else (2, 0, 64, 128)] * t.n, *[(2, 0, 64, 128)] * t.n
        ]  # fmt: skip


def split_heads(t: Env) -> None:
    ttnn, x = t.ttnn, t.rand(2, 64, 768)
    split = ttnn.transformer.split_query_key_value_and_split_heads
    q, k, v = (_split(part, 4) for part in x.chunk(3, -1))
    _three(t, split(t.put(x), num_heads=4), q, k.mT, v)
    _three(t, split(t.put(x), num_heads=4, transpose_key=False), q, k, v)
    grouped = t.rand(2, 64, 512)
    q, k, v = grouped.split([256, 128, 128], -1)
    outputs = split(t.put(grouped), num_heads=4, num_kv_heads=2, transpose_key=False)
    _three(t, outputs, _split(q, 4), _split(k, 2), _split(v, 2))


def join_heads(t: Env) -> None:
    x = t.rand(2, 4, 64, 64)
    joined = torch.cat([x[:, head] for head in range(4)], -1)
    t.check(t.ttnn.transformer.concatenate_heads(t.put(x)), joined)
    t.check(t.ttnn.experimental.nlp_concat_heads(t.put(x)), joined.unsqueeze(1))


def rotary(t: Env) -> None:
    x = t.rand(1, 4, 64, 64)
    cos, sin, turn = _rope(t, 64, 64)
    out = t.ttnn.experimental.rotary_embedding_llama(t.put(x), t.put(cos), t.put(sin), t.put(turn))
    t.check(out, _rotated(x, cos, sin), ulps=2)


def rotary_of_a_token(t: Env) -> None:
    """Every user's token has a place of its own."""
    ttnn, users = t.ttnn, 4
    x = t.rand(1, users, 8, 64)
    cos, sin, turn = _rope(t, users, 64)
    by_user = [c.reshape(1, users, 1, 64) for c in (cos, sin)]
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(users - 1, 0))})

    def on_cores(value: Tensor) -> Any:
        spec = ttnn.ShardSpec(cores, (32, value.shape[-1]), ttnn.ShardOrientation.ROW_MAJOR)
        config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
        return ttnn.to_memory_config(t.put(value), config)

    out = ttnn.experimental.rotary_embedding_llama(
        on_cores(x), *map(on_cores, by_user), on_cores(turn.repeat(1, 1, users, 1)), is_decode_mode=True
    )
    t.check(out, _rotated(x, *by_user), ulps=2)


def rotary_halves(t: Env) -> None:
    x, angle = t.rand(1, 4, 64, 64), torch.rand(1, 1, 64, 32, generator=t.random)
    cos, sin = angle.cos().bfloat16().float(), angle.sin().bfloat16().float()
    first, second = x.chunk(2, -1)
    wanted = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    caches = [t.put(torch.cat([c, c], -1)) for c in (cos, sin)]
    t.check(t.ttnn.experimental.rotary_embedding(t.put(x), *caches), wanted, ulps=2)


def plain(t: Env) -> None:
    """Heads cut over axis 1; causal unless told otherwise."""
    q, k, v = (t.rand(2, 8, 64, 64) for _ in range(3))
    on_mesh = [t.put(x, (None, 1)) for x in (q, k, v)]
    attend = t.ttnn.transformer.scaled_dot_product_attention
    t.check(attend(*on_mesh, is_causal=False), t.shards(sdpa(q, k, v), (None, 1)))
    t.check(attend(*on_mesh), t.shards(sdpa(q, k, v, is_causal=True), (None, 1)))
    t.check(attend(*on_mesh, is_causal=False, scale=0.3), t.shards(sdpa(q, k, v, scale=0.3), (None, 1)))
    mask = t.rand(2, 1, 64, 64)
    out = attend(*on_mesh, is_causal=False, attn_mask=t.put(mask))
    t.check(out, t.shards(sdpa(q, k, v, mask), (None, 1)))


def queries_of_no_row(t: Env) -> None:
    q, k = t.put(torch.zeros(1, 2, 0, 64)), t.put(t.rand(1, 2, 32, 64))
    t.check(t.ttnn.transformer.scaled_dot_product_attention(q, k, k, is_causal=False), torch.zeros(1, 2, 0, 64))


def shared_heads_and_cross(t: Env) -> None:
    q, k, v = t.rand(1, 8, 64, 64), t.rand(1, 2, 128, 64), t.rand(1, 2, 128, 64)
    attend = t.ttnn.transformer.scaled_dot_product_attention
    wanted = sdpa(q, k, v, enable_gqa=True)
    t.check(attend(t.put(q), t.put(k), t.put(v), is_causal=False), wanted)
    merged = attend(t.put(q), t.put(k), t.put(v), is_causal=False, output_concat_heads=True)
    t.check(merged, torch.cat([wanted[:, head] for head in range(8)], -1).unsqueeze(1))


def joint(t: Env) -> None:
    spatial, prompt = [t.rand(1, 4, 64, 64) for _ in range(3)], [t.rand(1, 4, 32, 64) for _ in range(3)]
    wanted = sdpa(*(torch.cat(pair, 2) for pair in zip(spatial, prompt, strict=True)))
    on_mesh = [t.put(x) for x in (*spatial, *prompt)]
    attend = t.ttnn.transformer.joint_scaled_dot_product_attention
    out, rear = attend(*on_mesh, joint_strategy="rear", program_config=t.sdpa_config())
    t.check(out, wanted[:, :, :64])
    t.check(rear, wanted[:, :, 64:])


def _ring(t: Env, spatial: list[Tensor], prompt: list[Any], logical_n: int, **extra: Any) -> Any:
    """Heads cut over axis 0, tokens over axis 1, which is the ring; returns outputs and the K and V buffers."""
    ttnn, (heads, tokens) = t.ttnn, (spatial[0].shape[1] // t.shape[0], spatial[0].shape[2])
    buffers = [t.empty(1, heads, tokens, 64) for _ in range(2)]
    outputs = ttnn.transformer.ring_joint_scaled_dot_product_attention(
        *(t.put(x, (1, 2)) for x in spatial), *prompt,
        persistent_output_buffer_k=buffers[0], persistent_output_buffer_v=buffers[1], joint_strategy="rear",
        logical_n=logical_n, program_config=t.sdpa_config(1), dim=2, multi_device_global_semaphore=t.semaphores(2),
        num_links=1, cluster_axis=1, mesh_device=t.device, topology=t.linear, subdevice_id=ttnn.SubDeviceId(0),
        ccl_core_grid_offset=ttnn.CoreCoord(0, t.mesh.grid[1] - 1), **extra,
    )  # fmt: skip
    return outputs, buffers


def ring_joint(t: Env) -> None:
    """The last 22 of 256 tokens are padding: nobody attends to them."""
    n, spatial, prompt = 234, [t.rand(1, 4, 256, 64) for _ in range(3)], [t.rand(1, 4, 32, 64) for _ in range(3)]
    (out, rear, scratch), buffers = _ring(t, spatial, [t.put(x, (1, None)) for x in prompt], n)
    k, v = (torch.cat([spatial[i][:, :, :n], prompt[i]], 2) for i in (1, 2))
    t.check(out, t.shards(sdpa(spatial[0], k, v), (1, 2)))
    t.check(rear, t.shards(sdpa(prompt[0], k, v), (1, None)))
    t.check(scratch, torch.full(tuple(scratch.shape), float("nan")))
    for buffer, whole in zip(buffers, spatial[1:], strict=True):
        t.check(buffer, t.shards(whole, (1, None)))


def ring_without_joint(t: Env) -> None:
    n, spatial = 250, [t.rand(1, 4, 256, 64) for _ in range(3)]
    (out, *_), _ = _ring(t, spatial, [None] * 3, n, scale=0.2)
    wanted = sdpa(spatial[0], spatial[1][:, :, :n], spatial[2][:, :, :n], scale=0.2)
    t.check(out, t.shards(wanted, (1, 2)))


def ring_with_cut_joint(t: Env) -> None:
    """The joint stream is cut over the ring as well, and padded from its token 100 on."""
    n, l, spatial = 256, 100, [t.rand(1, 4, 256, 64) for _ in range(3)]
    prompt = [t.rand(1, 4, 128, 64) for _ in range(3)]
    buffers = {f"persistent_output_buffer_joint_{x}": t.empty(1, 2, 128, 64) for x in "kv"}
    (out, rear, _), _ = _ring(t, spatial, [t.put(x, (1, 2)) for x in prompt], n, logical_l=l, **buffers)
    k, v = (torch.cat([spatial[i], prompt[i][:, :, :l]], 2) for i in (1, 2))
    t.check(out, t.shards(sdpa(spatial[0], k, v), (1, 2)))
    t.check(rear, t.shards(sdpa(prompt[0], k, v), (1, 2)))
    t.check(buffers["persistent_output_buffer_joint_k"], t.shards(prompt[1], (1, None)))


def ring_with_empty_joint(t: Env) -> None:
    """A prompt of no tokens, as video models pass it."""
    spatial = [t.rand(1, 4, 256, 64) for _ in range(3)]
    empty = [t.put(torch.zeros(1, 4, 0, 64), (1, None)) for _ in range(3)]
    (out, rear, _), _ = _ring(t, spatial, empty, 256)
    t.check(out, t.shards(sdpa(*spatial), (1, 2)))
    assert tuple(rear.shape)[:3] == (1, 2, 0)


def windows(t: Env) -> None:
    """Windows of 40, 88 and 128 tokens; rows cut over axis 1, each device told its first by a scalar of its own."""
    ttnn, ends, n = t.ttnn, [0, 40, 128, 256], 256
    q, k, v = (t.rand(1, 4, n, 64) for _ in range(3))
    number = torch.repeat_interleave(torch.arange(3), torch.tensor([40, 88, 128]))
    hidden = number[:, None] != number
    on_mesh = [t.put(q, (None, 2)), t.put(k), t.put(v)]
    bounds = t.put(torch.tensor(ends, dtype=torch.int32), dtype="int32", layout="ROW_MAJOR")
    firsts = torch.arange(t.shape[1], dtype=torch.int32) * (n // t.shape[1])
    first = t.put(firsts, (None, 0), dtype="int32", layout="ROW_MAJOR")
    ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
    for causal, mask in ((False, hidden), (True, hidden | ahead)):
        out = ttnn.transformer.scaled_dot_product_attention(
            *on_mesh, is_causal=causal, cu_window_seqlens=bounds, windowed_q_token_offset_tensor=first,
            program_config=t.sdpa_config(),
        )  # fmt: skip
        t.check(out, t.shards(sdpa(q, k, v, ~mask), (None, 2)))


def masked_rows(t: Env) -> None:
    """A row that may attend to nothing is NaN, not zero."""
    q, k, v = t.rand(1, 4, 64, 64), t.rand(1, 4, 64, 64), t.rand(1, 4, 64, 64)
    mask = torch.zeros(1, 1, 64, 64)
    mask[..., 5, :] = float("-inf")
    mask[..., 6, 7:] = float("-inf")
    attend = t.ttnn.transformer.scaled_dot_product_attention
    wanted = torch.softmax(q @ k.mT / 8 + mask, -1) @ v
    assert wanted[..., 5, :].isnan().all() and wanted[..., 6, :].isfinite().all()
    t.check(attend(*map(t.put, (q, k, v)), is_causal=False, attn_mask=t.put(mask)), wanted)


def plain_is_not_joint(t: Env) -> None:
    """The ring sees tokens of other devices: with local keys only, the answer is another one."""
    q, k, v = (t.rand(1, 4, 256, 64) for _ in range(3))
    (out, *_), _ = _ring(t, [q, k, v], [None] * 3, 256)
    local = [sdpa(*(x.chunk(4, 2)[column] for x in (q, k, v))) for column in range(4)]
    first = t.shadow.values(out)[0]
    assert not torch.allclose(first, local[0][:, :2], atol=0.1)


def unknown_arguments(t: Env) -> None:
    """An argument that a rule does not have is told, not ignored."""
    q, mask = t.put(t.rand(1, 4, 64, 64)), t.put(t.rand(1, 1, 64, 64))
    blocks = t.put(torch.ones(1, 1, 2, 2, dtype=torch.int32), dtype="int32", layout="ROW_MAJOR")
    attend = t.ttnn.transformer.scaled_dot_product_attention
    how = dict(is_causal=False, attn_mask=mask, attn_mask_block_map=blocks, program_config=t.sdpa_config())
    raises(Exception, lambda: attend(q, q, q, **how), "scaled_dot_product_attention", "attn_mask_block_map")


def queries_on_every_core(t: Env) -> None:
    """A query that lies on each of the cores that work on it gives what it gives once."""
    ttnn = t.ttnn
    users, heads, cores, size = 2, 64, 4, 96
    q, k = t.rand(1, users, heads, size), t.rand(8, 1, 32, size)
    pages = t.integers(torch.randperm(8, generator=t.random).reshape(users, 4))
    how: dict[str, Any] = dict(
        head_dim_v=64,
        page_table_tensor=pages,
        cur_pos_tensor=t.integers(torch.tensor([3, 100])),
        program_config=ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=t.device.compute_with_storage_grid_size(),
            q_chunk_size=0,
            k_chunk_size=32,
            max_cores_per_head_batch=cores,
        ),
    )
    decode = ttnn.transformer.paged_flash_multi_latent_attention_decode
    wanted = t.shadow.values(decode(t.put(q), t.put(k), **how))[0]
    copies = q.reshape(1, users, 2, 32, size).repeat_interleave(cores, 2).reshape(1, 1, -1, size)
    grid = ttnn.num_cores_to_corerangeset(users * 2 * cores, t.device.compute_with_storage_grid_size(), row_wise=True)
    spec = ttnn.ShardSpec(grid, [32, size], ttnn.ShardOrientation.ROW_MAJOR)
    memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    t.check(decode(ttnn.to_memory_config(t.put(copies), memory), t.put(k), **how), wanted, ulps=0)


CASES = collect(globals())
