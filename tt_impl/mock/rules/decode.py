"""Attention of one new token of every user to its cache, and of a chunk of tokens to a paged cache.

A paged cache is a pile of blocks; the page table says which block holds which stretch of a user's tokens.

Legend: B users, H heads, Hkv heads of K and V, S tokens of a cache, E head size, P blocks, T tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tt_impl.mock.rules.attention import attend, attend_with_scaled_mask, latent_values, later, outside
from tt_impl.mock.rules.registry import TILE, Call, per_device
from tt_impl.mock.storage.not_finite import UNWRITTEN

SKIPPED = -1
"""A position, or an entry of a page table, that says: nothing here."""


def positions(numbers: Sequence[int], tensor: Tensor | None, users: int) -> list[int]:
    """Return one of every user; a tensor that lies on several cores has them once per core."""
    places = list(numbers) if tensor is None else tensor.reshape(-1).tolist()
    if len(places) < users:
        raise TypeError(f"{len(places)} positions for {users} users are not known")
    return places[:users]


def viewed(cache: Tensor, heads: int, tokens: int, size: int) -> Tensor:
    """View a paged cache as of other blocks: the same tiles in the same order, [P, heads, tokens, size].

    Layers of different geometry share a buffer; a device finds tiles by their number within a block.
    """
    blocks, old_heads, old_tokens, old_size = cache.shape
    if (old_heads, old_tokens, old_size) == (heads, tokens, size):
        return cache
    whole_tiles = not any(x % TILE for x in (old_tokens, old_size, tokens, size))
    if old_heads * old_tokens * old_size != heads * tokens * size or not whole_tiles:
        raise TypeError(f"a block of {cache.shape[1:]} read as {(heads, tokens, size)} is not known")
    tiles = cache.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE)).transpose(3, 4)
    tiles = tiles.reshape(blocks, heads, tokens // TILE, size // TILE, TILE, TILE)
    return tiles.transpose(3, 4).reshape(blocks, heads, tokens, size)


def unpaged(cache: Tensor, page_table: Tensor, users: int | None = None) -> Tensor:
    """Read [B, Hkv, S, E] from [P, Hkv, T, E] by a page table [B, S/T], or by its first ``users`` rows."""
    if users is not None:
        page_table = page_table.reshape(-1, page_table.shape[-1])[:users]
    blocks = cache[page_table.clamp(min=0)]
    return blocks.transpose(1, 2).flatten(2, 3)


@per_device("transformer.scaled_dot_product_attention_decode")
def scaled_dot_product_attention_decode(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    *,
    is_causal: bool = True,
    attn_mask: Tensor | None = None,
    cur_pos: Sequence[int] = (),
    cur_pos_tensor: Tensor | None = None,
    attention_sink: Tensor | None = None,
    scale: float | None = None,
    sliding_window_size: int | None = None,
    share_cache: bool | None = None,
    attend: Callable[..., Tensor] = attend_with_scaled_mask,
) -> Tensor:
    """Attend from a query [1, B, H, E] of every user to its cache [B, Hkv, S, E], up to its position; NaN if skipped.

    ``attn_mask`` is [1, B or 1, H, S], or as many numbers with users in front, [B, 1, H, S], and is scaled like the
    scores; ``attention_sink`` [H, 32] with the values in the first column.
    """
    q = input_tensor_q
    k = input_tensor_k
    v = input_tensor_v
    users = q.shape[1]
    if share_cache:
        raise TypeError("share_cache, whose result is of one user, is not known")
    if not is_causal and sliding_window_size:
        raise TypeError("a sliding window without is_causal is not known")
    last = positions(cur_pos, cur_pos_tensor, users) if is_causal else [k.shape[2] - 1] * users
    mask = attn_mask.transpose(0, 1) if attn_mask is not None and attn_mask.shape[1] == 1 else attn_mask
    sink = None if attention_sink is None else attention_sink.reshape(-1, attention_sink.shape[-1])[: q.shape[2], 0]
    result = q.new_full((*q.shape[:3], v.shape[-1]), UNWRITTEN)
    for user, position in enumerate(last):
        if position == SKIPPED:
            continue
        first = max(0, position + 1 - sliding_window_size) if sliding_window_size else 0
        keys, values = (x[user][None, :, first : position + 1] for x in (k, v))
        added = None if mask is None else mask[:, min(user, mask.shape[1] - 1)].unsqueeze(2)[..., first : position + 1]
        out = attend(q[:, user].unsqueeze(2), keys, values, scale=scale, mask=added, sink=sink)
        result[:, user] = out.squeeze(2)
    return result


@per_device("transformer.paged_scaled_dot_product_attention_decode")
def paged_scaled_dot_product_attention_decode(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    page_table_tensor: Tensor,
    *,
    cur_pos_tensor: Tensor | None = None,
    paged_cache_geometry: Any = None,
    cache_position_modulo: int | None = None,
    sliding_window_size: int | None = None,
    **rest: Any,
) -> Tensor:
    """Attend to blocks; with ``cache_position_modulo`` the blocks are a ring, token n in place n modulo that."""
    users = input_tensor_q.shape[1]
    k, v = (
        unpaged(geometry(cache, paged_cache_geometry, input_tensor_q.shape[-1]), page_table_tensor, users)
        for cache in (input_tensor_k, input_tensor_v)
    )
    if cache_position_modulo is None:
        return scaled_dot_product_attention_decode(
            input_tensor_q, k, v, cur_pos_tensor=cur_pos_tensor, sliding_window_size=sliding_window_size, **rest
        )
    if not sliding_window_size:
        raise TypeError("cache_position_modulo without a sliding window is not known")
    last = positions((), cur_pos_tensor, users)
    order = [torch.arange(max(0, at + 1 - sliding_window_size), at + 1) % cache_position_modulo for at in last]
    parts = [
        scaled_dot_product_attention_decode(
            input_tensor_q[:, user : user + 1], k[user : user + 1, :, rows], v[user : user + 1, :, rows],
            cur_pos=[len(rows) - 1], **rest,
        )
        for user, rows in enumerate(order)
    ]  # fmt: skip
    return torch.cat(parts, 1)


def geometry(cache: Tensor, override: Any, size: int) -> Tensor:
    """View ``cache`` as a ``PagedCacheGeometryOverride`` says, for heads of ``size``."""
    if override is None:
        return cache
    heads = override.num_kv_heads if override.num_kv_heads is not None else cache.shape[1]
    tokens = override.block_size if override.block_size is not None else cache.shape[2]
    return viewed(cache, heads, tokens, size)


@per_device(
    "transformer.flash_multi_latent_attention_decode",
    "transformer.paged_flash_multi_latent_attention_decode",
    with_call=True,
)
def flash_multi_latent_attention_decode(
    call: Call,
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor | None = None,
    head_dim_v: int | None = None,
    page_table_tensor: Tensor | None = None,
    **rest: Any,
) -> Tensor:
    """Decode with latent attention, from blocks by a page table: V is the first columns of K, unless it is given.

    A query that lies on every core that works on it, [1, 1, B * tiles * cores * H/tiles, E], is read once.
    """
    _, users, heads, _ = call.outputs[0].shape
    q = input_tensor_q
    if tuple(q.shape[1:3]) != (users, heads):
        tiles = -(-heads // TILE)
        q = q.reshape(1, users, tiles, -1, heads // tiles, q.shape[-1])[:, :, :, 0].reshape(1, users, heads, -1)
    k = input_tensor_k
    v = latent_values(input_tensor_k, head_dim_v if input_tensor_v is None else input_tensor_v)
    if page_table_tensor is not None:
        k, v = (unpaged(cache, page_table_tensor, users) for cache in (k, v))
    return scaled_dot_product_attention_decode(q, k, v, **rest)


@per_device("transformer.chunked_scaled_dot_product_attention")
def chunked_scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    page_table_tensor: Tensor,
    chunk_start_idx: int | None = None,
    *,
    chunk_start_idx_tensor: Tensor | None = None,
    scale: float | None = None,
    paged_cache_geometry: Any = None,
    sliding_window_size: int | None = None,
    attention_sink: Tensor | None = None,
    attend: Callable[..., Tensor] = attend,
) -> Tensor:
    """Attend from queries [B, H, N, E] that begin at token ``chunk_start_idx`` to a paged cache, causal."""
    (start,) = positions([] if chunk_start_idx is None else [chunk_start_idx], chunk_start_idx_tensor, 1)
    end = start + input_tensor_q.shape[2]
    k, v = (
        unpaged(geometry(cache, paged_cache_geometry, input_tensor_q.shape[-1]), page_table_tensor)[:, :, :end]
        for cache in (input_tensor_k, input_tensor_v)
    )
    past = outside(sliding_window_size, causal=True) if sliding_window_size else later

    def hidden(rows: Tensor, columns: Tensor) -> Tensor:
        return past(rows + start, columns)

    return attend(input_tensor_q, k, v, scale=scale, hidden=hidden, sink=attention_sink)


@per_device("transformer.chunked_flash_mla_prefill")
def chunked_flash_mla_prefill(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    head_dim_v: int,
    page_table_tensor: Tensor,
    chunk_start_idx: int,
    *,
    scale: float | None = None,
    attend: Callable[..., Tensor] = attend,
) -> Tensor:
    """Attend from a chunk to a paged cache, causal and latent."""
    v = latent_values(input_tensor_k, head_dim_v)
    return chunked_scaled_dot_product_attention(
        input_tensor_q, input_tensor_k, v, page_table_tensor, chunk_start_idx, scale=scale, attend=attend
    )
