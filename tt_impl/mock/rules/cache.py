"""Caches of keys and values, whole or in pages, and the attention of one new token to them.

A paged cache is a pile of blocks; the page table says which block holds which stretch of a user's tokens.

Legend: B users, H heads, Hkv heads of K and V, S tokens of a cache, E head size, P blocks, T tokens of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tt_impl.mock.rules.attention import attend
from tt_impl.mock.rules.registry import per_device

SKIPPED = -1
"""A position, or an entry of a page table, that says: nothing here."""


def _positions(given: Sequence[int], tensor: Tensor | None) -> list[int]:
    positions = list(given) if tensor is None else tensor.reshape(-1).tolist()
    if not positions:
        raise TypeError("no position is given")
    return positions


def _place(page_table: Tensor, user: int, token: int, block_size: int) -> tuple[int, int]:
    """(block, row in it) of a user's token."""
    return int(page_table[user, token // block_size]), token % block_size


@per_device("experimental.paged_update_cache")
def paged_update_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    *,
    update_idxs: Sequence[int] = (),
    update_idxs_tensor: Tensor | None = None,
    page_table: Tensor | None = None,
    share_cache: bool | None = None,
) -> Tensor:
    """One token [1, B, Hkv, E] of every user into [B, Hkv, S, E], or, with a page table [B, S/T], [P, Hkv, T, E]."""
    if share_cache:
        raise TypeError("share_cache is not known")
    cache, heads = cache_tensor.clone(), cache_tensor.shape[1]
    for user, token in enumerate(_positions(update_idxs, update_idxs_tensor)):
        if token == SKIPPED:
            continue
        block, row = (user, token) if page_table is None else _place(page_table, user, token, cache.shape[2])
        cache[block, :, row] = input_tensor[0, user, :heads]
    return cache


@per_device("experimental.paged_fused_update_cache")
def paged_fused_update_cache(
    cache_tensor1: Tensor, input_tensor1: Tensor, cache_tensor2: Tensor, input_tensor2: Tensor, **where: Any
) -> list[Tensor]:
    """K and V in one call."""
    return [
        paged_update_cache(cache_tensor1, input_tensor1, **where),
        paged_update_cache(cache_tensor2, input_tensor2, **where),
    ]


@per_device("experimental.paged_fill_cache")
def paged_fill_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    page_table: Tensor,
    *,
    batch_idx: int = 0,
    batch_idx_tensor: Tensor | None = None,
) -> Tensor:
    """All tokens [n, Hkv, S, E] of n users into their blocks of [P, Hkv, T, E]."""
    users = [batch_idx] if batch_idx_tensor is None else batch_idx_tensor.reshape(-1).tolist()
    cache, size = cache_tensor.clone(), cache_tensor.shape[2]
    for x, user in zip(input_tensor, users, strict=True):
        for number, tokens in enumerate(x.split(size, 1)):
            block = int(page_table[user, number])
            if block != SKIPPED:
                cache[block, :, : tokens.shape[1]] = tokens
    return cache


@per_device("update_cache", "kv_cache.update_cache_for_token_")
def update_cache(cache: Tensor, input: Tensor, update_idx: int, batch_offset: int = 0) -> Tensor:
    """The same token number of every user: [1, Hkv, >= offset + B, E] into [B, Hkv, S, E]."""
    result = cache.clone()
    result[:, :, update_idx] = input[0, :, batch_offset : batch_offset + cache.shape[0]].transpose(0, 1)
    return result


@per_device("fill_cache", "kv_cache.fill_cache_for_user_")
def fill_cache(cache: Tensor, input: Tensor, batch_idx: int, *, update_idx: int = 0) -> Tensor:
    """Tokens [1, Hkv, N, E] of one user into [B, Hkv, S, E], from token ``update_idx`` on."""
    result = cache.clone()
    result[batch_idx, :, update_idx : update_idx + input.shape[2]] = input[0]
    return result


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
    scale: float | None = None,
) -> Tensor:
    """One query [1, B, H, E] of every user to its cache [B, Hkv, S, E], causal; NaN if skipped."""
    users = input_tensor_q.shape[1]
    last = _positions(cur_pos, cur_pos_tensor) if is_causal else [input_tensor_k.shape[2] - 1] * users
    result = torch.full_like(input_tensor_q, float("nan"))
    for user, position in enumerate(last):
        if position == SKIPPED:
            continue
        k, v = (x[user : user + 1, :, : position + 1] for x in (input_tensor_k, input_tensor_v))
        mask = None if attn_mask is None else attn_mask[:, min(user, attn_mask.shape[1] - 1)].unsqueeze(2)
        out = attend(input_tensor_q[:, user].unsqueeze(2), k, v, scale=scale, mask=mask)
        result[:, user] = out.squeeze(2)
    return result


def _unpaged(cache: Tensor, page_table: Tensor) -> Tensor:
    """[P, Hkv, T, E] and a page table [B, S/T] -> [B, Hkv, S, E]."""
    blocks = cache[page_table.clamp(min=0)]
    return blocks.transpose(1, 2).flatten(2, 3)


@per_device("transformer.paged_scaled_dot_product_attention_decode")
def paged_scaled_dot_product_attention_decode(
    input_tensor_q: Tensor, input_tensor_k: Tensor, input_tensor_v: Tensor, page_table_tensor: Tensor, **rest: Any
) -> Tensor:
    k, v = (_unpaged(x, page_table_tensor) for x in (input_tensor_k, input_tensor_v))
    return scaled_dot_product_attention_decode(input_tensor_q, k, v, **rest)


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
) -> Tensor:
    """Queries [B, H, N, E] that begin at token ``chunk_start_idx`` to a paged cache, causal."""
    (start,) = _positions([] if chunk_start_idx is None else [chunk_start_idx], chunk_start_idx_tensor)
    k, v = (_unpaged(x, page_table_tensor) for x in (input_tensor_k, input_tensor_v))
    rows, end = input_tensor_q.shape[2], start + input_tensor_q.shape[2]
    ahead = torch.arange(end) > torch.arange(start, end).reshape(rows, 1)
    mask = torch.zeros(rows, end).masked_fill(ahead, float("-inf"))
    return attend(input_tensor_q, k[:, :, :end], v[:, :, :end], scale=scale, mask=mask)
