"""Faults of the paged cache: page tables, places of rows, pages of other users and other layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parity.cases import GenerationShape, Layout, make_case
from parity.faults.around import Patch, at
from parity.faults.registry import fault

TP2 = make_case(
    "ttnn_generation",
    "dflash_two_tiny32",
    Layout("n300", "tp2"),
    GenerationShape(prompts=2, text=32, least=28, max_new_tokens=6, cache="paged"),
    tag="paged",
)


pages = partial(fault, "paged cache", case=TP2)


@pages("Attention reads a user's first two pages in the wrong order.", "a page table sorted by page")
@at("tt_impl.layers.paged_cache:PagePool.on_device")
def pages_swapped(original: Callable, self: Any, table: list[int], users: int) -> Any:
    return original(self, table if users == 1 else [*table[1:2], *table[:1], *table[2:]], users)


@pages("Attention reads the first page of the user before.", "page tables indexed by a row that was reused")
def page_of_another_user() -> Patch:
    tables: list[list[int]] = []

    @at("tt_impl.layers.paged_cache:PagePool.on_device")
    def other(original: Callable, self: Any, table: list[int], users: int) -> Any:
        if not any(table is known for known in tables):
            tables.append(table)
        return original(self, table if users == 1 else [tables[0][0], *table[1:]], users)

    return other()


@pages("The page table on the device is the one from before the last page was taken.", "table sent once")
def stale_page_table() -> Patch:
    sent: list[tuple[list[int], list[int]]] = []

    @at("tt_impl.layers.paged_cache:PagePool.on_device")
    def stale(original: Callable, self: Any, table: list[int], users: int) -> Any:
        known = next((copy for owner, copy in sent if owner is table), None)
        if known is None:
            known = list(table)
            sent.append((table, known))
        return original(self, known, users)

    return stale()


@pages("New rows are written one place late.", "the cache's length counted with the new row")
@at("tt_impl.layers.paged_cache:PagedKVCache._update")
def row_written_one_late(original: Callable, self: Any, piles: Any, new: Any, first: int) -> None:
    original(self, piles, new, first + 1)


@pages("Pages are taken as if one held twice its rows.", "block size of the pool and of the table differ")
@at("tt_impl.layers.paged_cache:PagePool.reserve")
def page_size_doubled(original: Callable, self: Any, table: list[int], rows: int) -> None:
    original(self, table, -(-rows // 2))


@pages("The prompt's last row is not filled in.", "the fill ends at the row that is decoded next")
@at("tt_impl.layers.paged_cache:PagedKVCache._fill")
def fill_short_by_one(original: Callable, self: Any, piles: Any, new: Any) -> None:
    original(self, piles, tuple(x[:, :, : x.shape[2] - 1] for x in new))


@pages("New values are written over the keys.", "one buffer for keys and values of the update")
@at("tt_impl.layers.paged_cache:PagedKVCache._update")
def values_over_keys(original: Callable, self: Any, piles: Any, new: Any, first: int) -> None:
    original(self, (piles[0], piles[0]), new, first)


@pages("A row does not see itself.", "position of the last row that is there before it")
@at("tt_impl.layers.paged_cache:PagedKVCache._decode")
def position_one_early(original: Callable, self: Any, ctx: Any, query: Any, piles: Any, first: int) -> Any:
    return original(self, ctx, query, piles, first - 1)


@pages("All layers keep their rows in the first one's pages.", "pages allocated once instead of per layer")
@at("tt_impl.layers.paged_cache:PagePool.piles")
def layers_share_pages(original: Callable, self: Any, layer: int, like: Any) -> Any:
    return original(self, 0, like)


@pages(
    "Rejected rows stay in the pages.",
    "a cache that is only cropped where it is contiguous",
    says="the target's cache has .* rows before position",
)
@at("tt_impl.layers.paged_cache:PagedKVCache.crop")
def rejected_rows_stay(_: Callable, self: Any, length: Any) -> Any:
    return None
