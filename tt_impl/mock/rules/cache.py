"""Caches of keys and values, whole or in pages, and what is written into them.

Legend: B users, H heads, Hkv heads of K and V, S tokens of a cache, E head size, P blocks, T tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from tt_impl.mock.rules.decode import SKIPPED, positions, viewed
from tt_impl.mock.rules.registry import TILE, Call, across, per_device, table
from tt_impl.mock.storage.values import Shards, ranks_of


def _place(page_table: Tensor, user: int, token: int, block_size: int) -> tuple[int, int]:
    """Return (block, row in it) of a user's token."""
    return int(page_table[user, token // block_size]), token % block_size


def _where(call: Call, cache: Shards, argument: str, mesh_coords: Any, write: Callable, *inputs: Any) -> list[Tensor]:
    """Write every device's cache from its inputs; devices that are not among ``mesh_coords`` keep their cache."""
    results = call.each(write, cache, *inputs)
    if not mesh_coords:
        return results
    columns = cache.mesh_shape[1]
    chosen = {coordinate[0] * columns + coordinate[1] for coordinate in mesh_coords}
    ranks = ranks_of(call.argument(argument, 0 if argument != "cache_tensor2" else 2))
    return [result if rank in chosen else cache[i] for i, (rank, result) in enumerate(zip(ranks, results, strict=True))]


@dataclass(frozen=True)
class _Places:
    """Where new tokens go, as the caller says it; ``batch_offset`` is always 0."""

    update_idxs: Sequence[int] = ()
    share_cache: bool | None = None
    block_size: int | None = None
    num_kv_heads: int | None = None
    cache_position_modulo: int | None = None
    batch_offset: int = 0


def _update(cache: Tensor, new: Tensor, at: Tensor | None, table: Tensor | None, places: _Places) -> Tensor:
    """Write a token of every user, [1, B, Hkv, E], into [B, Hkv, S, E] (one for all if shared) or [P, Hkv, T, E]."""
    heads = places.num_kv_heads or cache.shape[1]
    tokens = places.block_size or cache.shape[2]
    result = viewed(cache, heads, tokens, new.shape[-1]).clone()
    users = min(new.shape[1], len(places.update_idxs) if at is None else at.numel())
    for user, token in enumerate(positions(places.update_idxs, at, users)):
        if token == SKIPPED:
            continue
        token = token % places.cache_position_modulo if places.cache_position_modulo else token
        if table is not None:
            block, row = _place(table, user, token, tokens)
        else:
            block = 0 if places.share_cache else user
            row = token
        if block != SKIPPED:
            result[block, :, row] = new[0, user, :heads]
    return viewed(result, *cache.shape[1:])


@across("experimental.paged_update_cache")
def paged_update_cache(
    call: Call,
    cache_tensor: Shards,
    input_tensor: Shards,
    *,
    update_idxs_tensor: Shards | None = None,
    page_table: Shards | None = None,
    mesh_coords: Any = None,
    **how: Any,
) -> list[Tensor]:
    write = partial(_update, places=_Places(**how))
    inputs = (input_tensor, update_idxs_tensor, page_table)
    return _where(call, cache_tensor, "cache_tensor", mesh_coords, write, *inputs)


@across("experimental.paged_fused_update_cache")
def paged_fused_update_cache(
    call: Call,
    cache_tensor1: Shards,
    input_tensor1: Shards,
    cache_tensor2: Shards,
    input_tensor2: Shards,
    *,
    update_idxs_tensor: Shards | None = None,
    page_table: Shards | None = None,
    mesh_coords: Any = None,
    **how: Any,
) -> tuple[list[Tensor], ...]:
    """Update K and V in one call."""
    write = partial(_update, places=_Places(**how))
    pairs = {"cache_tensor1": (cache_tensor1, input_tensor1), "cache_tensor2": (cache_tensor2, input_tensor2)}
    return tuple(
        _where(call, cache, name, mesh_coords, write, new, update_idxs_tensor, page_table)
        for name, (cache, new) in pairs.items()
    )


@across("experimental.paged_fill_cache")
def paged_fill_cache(
    call: Call,
    cache_tensor: Shards,
    input_tensor: Shards,
    page_table: Shards,
    *,
    batch_idx: int = 0,
    batch_idx_tensor: Shards | None = None,
    mesh_coords: Any = None,
    block_size: int | None = None,
    cache_position_modulo: int | None = None,
) -> list[Tensor]:
    """Write all tokens [n, Hkv, S, E] of n users into their blocks of [P, Hkv, T, E].

    With ``cache_position_modulo`` the blocks are a ring, of which the last tokens keep their places.
    """

    def write(cache: Tensor, new: Tensor, table: Tensor, users: Tensor | None) -> Tensor:
        chosen = [batch_idx] if users is None else users.reshape(-1).tolist()
        size = block_size or cache.shape[2]
        result = viewed(cache, new.shape[1], size, new.shape[-1]).clone()
        for x, user in zip(new, chosen, strict=True):
            if user == SKIPPED:
                continue
            for first in range(0, x.shape[1], TILE):  # a device writes tiles
                token = first % cache_position_modulo if cache_position_modulo else first
                block, row = _place(table, user, token, size)
                tile = x[:, first : first + TILE]
                if block != SKIPPED:
                    result[block, :, row : row + tile.shape[1]] = tile
        return viewed(result, *cache.shape[1:])

    return _where(call, cache_tensor, "cache_tensor", mesh_coords, write, input_tensor, page_table, batch_idx_tensor)


@per_device("experimental.indexed_fused_update_cache")
def indexed_fused_update_cache(
    cache_tensor1: Tensor,
    input_tensor1: Tensor,
    cache_tensor2: Tensor,
    input_tensor2: Tensor,
    physical_update_idxs_tensor: Tensor,
) -> list[Tensor]:
    """Write rows [1, H, n, E] to places block * T + row by the tensor of indices; places outside are skipped."""
    results = []
    for cache, new in ((cache_tensor1, input_tensor1), (cache_tensor2, input_tensor2)):
        result = cache.clone()
        tokens = cache.shape[2]
        for row, place in enumerate(physical_update_idxs_tensor.reshape(-1)[: new.shape[2]].tolist()):
            if 0 <= place < cache.shape[0] * tokens:
                result[place // tokens, :, place % tokens] = new[0, :, row]
        results.append(result)
    return results


@per_device("update_cache")
def update_cache(cache: Tensor, input: Tensor, update_idx: int, *, batch_offset: int = 0) -> Tensor:
    """Write the same token number of every user, [1, Hkv, >= offset + B, E], into [B, Hkv, S, E]."""
    result = cache.clone()
    result[:, :, update_idx] = input[0, :, batch_offset : batch_offset + cache.shape[0]].transpose(0, 1)
    return result


@per_device("fill_cache")
def fill_cache(cache_tensor: Tensor, input_tensor: Tensor, batch_idx: int, *, update_idx: int = 0) -> Tensor:
    """Write tokens [1, Hkv, N, E] of one user into [B, Hkv, S, E], from token ``update_idx`` on."""
    result = cache_tensor.clone()
    result[batch_idx, :, update_idx : update_idx + input_tensor.shape[2]] = input_tensor[0]
    return result


table(
    {
        # tokens of a cache [B, H, S, E]
        "experimental.nlp_kv_cache_load_slice": lambda input_tensor, *, seq_len_start, seq_len_end: input_tensor[
            :, :, seq_len_start:seq_len_end
        ],
        "kv_cache.fill_cache_for_user_": lambda cache, input, batch_index, *, update_idx=0: fill_cache(
            cache, input, batch_index, update_idx=update_idx
        ),
        "kv_cache.update_cache_for_token_": lambda cache, input, update_index, batch_offset=0: update_cache(
            cache, input, update_index, batch_offset=batch_offset
        ),
    }
)
