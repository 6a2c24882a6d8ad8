"""Keys and values in pages of a pool that all users share; a page table says which page holds which rows.

    user's rows    0 .. 31    32 .. 63    64 .. 95         row r lies in page table[r // PAGE], at r % PAGE
    page table       4          0           2              one per user, for all layers
    pool          | 0 | 1 | 2 | 3 | 4 | 5 |                (pages, heads, PAGE, E) per layer, in bf16

    prompt     paged_fill_cache, whole pages;  attention to the rows themselves
    new rows   paged_update_cache, row by row; paged decode attention, every row a "user" with the same pages

Rows that are verified together stand one after the other, so each attends up to its own position: that is what decode
attention does for users, and the mask is not needed. They are written in a call each, because a call's users are
written by different cores at once, and two rows of one tile would overwrite each other.

A page is taken when a row needs it. ``crop`` only forgets rows: what lies behind them in a page is stale and is written
over by the next rows. Counterpart: ``refsim.layers.paged_cache``.

Legend: H query heads and G key-value heads of a device; N new rows; E features of a head.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.base.errors import UserError
from tt_impl.layers.grouped_attention import grouped_attention
from tt_impl.parallel.context import Context

PAGE = 32
"""Rows of a page: a tile."""
_NO_PAGE = -1
_ENTRIES = 8
"""A page table is a multiple of 32 bytes wide, and ttnn wants no fewer pages than it has entries."""


def pages_for(lengths: list[int], more: int) -> int:
    """How many pages users with prompts of these lengths take for up to ``more`` rows behind each."""
    return sum(-(-(length + more) // PAGE) for length in lengths)


class PagePool:
    """The pages of all layers of a model: what is free, and who has which.

    Args:
        layers: caches that a user has.
        pages: of each layer.
    """

    def __init__(self, ctx: Context, layers: int, pages: int) -> None:
        self.ctx = ctx
        self.pages = pages
        self._layers = layers
        # Neighbours of a user are no neighbours in the pool, so that a table nobody asks shows.
        self._free = [*range(0, pages, 2), *range(1, pages, 2)][::-1]
        self._piles: dict[int, tuple[ttnn.Tensor, ttnn.Tensor]] = {}

    def new_cache(self) -> list[PagedKVCache]:
        """One empty cache per layer for a new user; they share a page table."""
        table: list[int] = []
        return [PagedKVCache(self, layer, table) for layer in range(self._layers)]

    def reserve(self, table: list[int], rows: int) -> None:
        """Take pages until ``table`` has room for ``rows``.

        Raises:
            UserError: none is left.
        """
        while len(table) * PAGE < rows:
            if not self._free:
                raise UserError(f"all {self.pages} pages of {PAGE} rows are taken; give the pool more, or fewer users.")
            table.append(self._free.pop())

    def piles(self, layer: int, like: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """Keys and values of a layer, (pages, G, PAGE, E), for rows ``like`` (1, G, rows, E)."""
        if layer not in self._piles:
            shape = max(self.pages, _ENTRIES), like.shape[1], PAGE, like.shape[3]
            self._piles[layer] = tuple(
                ttnn.zeros(shape, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=self.ctx.device) for _ in "kv"
            )
        return self._piles[layer]

    def on_device(self, table: list[int], users: int) -> ttnn.Tensor:
        """Make a page table for ``users`` that all have the same pages, (users, entries), on every device."""
        room = -(-max(1, len(table)) // _ENTRIES) * _ENTRIES
        entries = torch.tensor(table + [_NO_PAGE] * (room - len(table)), dtype=torch.int32)
        return self.ctx.put_rows(entries.repeat(users, 1), ttnn.int32)


class PagedKVCache:
    """The local heads' keys and values of one layer for one user."""

    def __init__(self, pool: PagePool, layer: int, table: list[int]) -> None:
        self.length = 0
        self._pool = pool
        self._layer = layer
        self._table = table

    def attend(
        self,
        ctx: Context,
        query_BHNE: ttnn.Tensor,
        key_BGNE: ttnn.Tensor,
        value_BGNE: ttnn.Tensor,
        *,
        mask: ttnn.Tensor | None,
    ) -> ttnn.Tensor:
        """Add rows, and the local heads' attention of their queries, (1, 1, N, H * E)."""
        first = self.length
        rows = key_BGNE.shape[2]
        self._pool.reserve(self._table, first + rows)
        new = tuple(ttnn.typecast(x, ttnn.bfloat16) for x in (key_BGNE, value_BGNE))
        piles = self._pool.piles(self._layer, new[0])
        self.length += rows
        if first == 0:
            self._fill(piles, new)
            return grouped_attention(ctx, query_BHNE, *new, mask=mask)
        self._update(piles, new, first)
        return self._decode(ctx, query_BHNE, piles, first)

    def crop(self, length: int) -> None:
        """Keep rows 0 .. length-1; the pages stay the user's.

        Raises:
            ValueError: there are fewer, or none would stay.
        """
        if not 0 < length <= self.length:
            raise ValueError(f"a cache of {self.length} rows cannot be cropped to {length}")
        self.length = length

    def _fill(self, piles: tuple[ttnn.Tensor, ...], new: tuple[ttnn.Tensor, ...]) -> None:
        """Write a prompt's rows, from the first on."""
        table = self._pool.on_device(self._table, 1)
        for pile, rows in zip(piles, new, strict=True):
            ttnn.experimental.paged_fill_cache(pile, rows, table, batch_idx=0)

    def _update(self, piles: tuple[ttnn.Tensor, ...], new: tuple[ttnn.Tensor, ...], first: int) -> None:
        """Rows behind those that are there, a call each."""
        table = self._pool.on_device(self._table, 1)
        tokens = [ttnn.permute(x, (0, 2, 1, 3)) for x in new]
        for number in range(tokens[0].shape[1]):
            place = self._pool.ctx.put_rows(torch.tensor([first + number], dtype=torch.int32), ttnn.int32)
            for pile, rows in zip(piles, tokens, strict=True):
                token = on_one_core(rows[:, number : number + 1])
                ttnn.experimental.paged_update_cache(pile, token, update_idxs_tensor=place, page_table=table)

    def _decode(self, ctx: Context, query_BHNE: ttnn.Tensor, piles: tuple[ttnn.Tensor, ...], first: int) -> ttnn.Tensor:
        """Row i of N attends to rows 0 .. first + i."""
        rows = query_BHNE.shape[2]
        positions = torch.arange(first, first + rows, dtype=torch.int32)
        out_BNHE = ttnn.transformer.paged_scaled_dot_product_attention_decode(
            ttnn.permute(ttnn.typecast(query_BHNE, ttnn.bfloat16), (0, 2, 1, 3)),
            *piles,
            self._pool.on_device(self._table, rows),
            cur_pos_tensor=ctx.put_rows(positions, ttnn.int32),
            compute_kernel_config=ctx.sdpa_config,
        )
        out = ttnn.permute(out_BNHE, (0, 2, 1, 3))
        return ttnn.typecast(ttnn.experimental.nlp_concat_heads(out), ctx.dtype)


def on_one_core(token_B1GE: ttnn.Tensor) -> ttnn.Tensor:
    """Move a token's heads (1, 1, G, E) into one core's L1, where the cache's update takes a user's from."""
    core = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))})
    shape = tuple(token_B1GE.padded_shape)[-2:]
    spec = ttnn.ShardSpec(core, shape, ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    return ttnn.to_memory_config(token_B1GE, config)
