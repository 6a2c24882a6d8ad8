"""Keys and values in pages of a pool that all users share; a page table says which page holds which rows.

    user's rows    0 .. 31    32 .. 63    64 .. 95         row r lies in page table[r // PAGE], at r % PAGE
    page table       4          0           2              one per user, for all layers
    pool          | 0 | 1 | 2 | 3 | 4 | 5 |                (pages, heads, PAGE, E) per layer

A page is taken when a row needs it and given back with its user. ``crop`` only forgets rows: what lies behind them in a
page is stale and is written over by the next rows.

Counterpart: the block tables of vLLM (PagedAttention).
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.layers.kv_cache import KVCache
from refsim.parallel.padding import TILE
from refsim.runtime.tensor import MeshTensor

PAGE = TILE
"""Rows of a page."""


def pages_for(lengths: list[int], more: int) -> int:
    """How many pages users with prompts of these lengths take for up to ``more`` rows behind each."""
    return sum(-(-(length + more) // PAGE) for length in lengths)


class PagePool:
    """The pages of all layers of a model: what is free, and who has which.

    Args:
        layers: caches that a user has.
        pages: of each layer.
    """

    def __init__(self, layers: int, pages: int) -> None:
        self.pages = pages
        self._layers = layers
        # Neighbours of a user are no neighbours in the pool, so that a table nobody asks shows.
        self._free = [*range(0, pages, 2), *range(1, pages, 2)][::-1]
        self._piles: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def taken(self) -> int:
        """Count the pages of each layer that users have."""
        return self.pages - len(self._free)

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

    def piles(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, (pages, heads, PAGE, E), for rows ``like`` (1, heads, rows, E)."""
        if layer not in self._piles:
            shape = self.pages, like.shape[1], PAGE, like.shape[3]
            self._piles[layer] = like.new_zeros(shape), like.new_zeros(shape)
        return self._piles[layer]


class PagedKVCache(KVCache):
    """The local heads' keys and values of one layer for one user; when it is cropped, its pages stay the user's."""

    def __init__(self, pool: PagePool, layer: int, table: list[int]) -> None:
        super().__init__()
        self._pool = pool
        self._layer = layer
        self._table = table

    def append(self, key_BHNE: MeshTensor, value_BHNE: MeshTensor) -> tuple[MeshTensor, MeshTensor]:
        """Write rows into their pages; returns all rows in order, laid out as the new ones."""
        stop = self.length + key_BHNE.local.shape[2]
        self._pool.reserve(self._table, stop)
        piles = self._pool.piles(self._layer, key_BHNE.local)
        for pile, new in zip(piles, (key_BHNE.local, value_BHNE.local), strict=True):
            for number, row in enumerate(range(self.length, stop)):
                pile[self._table[row // PAGE], :, row % PAGE] = new[0, :, number]
        self.length = stop
        k, v = (self._rows_in(pile) for pile in piles)
        return key_BHNE.with_local(k), value_BHNE.with_local(v)

    def _rows_in(self, pile: Tensor) -> Tensor:
        """(pages, heads, PAGE, E) -> (1, heads, length, E) by the page table."""
        mine = pile[torch.tensor(self._table)].transpose(0, 1).flatten(1, 2)
        return mine[None, :, : self.length]
