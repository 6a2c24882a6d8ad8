"""How a matmul is laid out on the cores, and where tensors lie: chosen from sizes and the device's grid.

    rows M -> one axis of the grid, columns N -> the other one; a core computes its part block by block:

        for each M block x N block:         out block, kept in L1 (fp32 while it grows)
            for each K block:               in0 block (M x K) and in1 block (K x N) stream in, double-buffered

Everything is counted in tiles of 32. No kernel has been timed for these choices; they follow from the sizes: as few
cores idle and as few padded tiles as possible, in blocks that fit L1 beside a stream's tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ttnn

from tt_impl.parallel.padding import TILE

LARGEST = 8
"""Of a block, in tiles: 8 x 8 in bf16, both inputs double-buffered, and the fp32 sum take 0.9 of 1.4 MiB of L1."""
SUBBLOCK = 4
"""Tiles that the destination registers hold with fp32 accumulation."""
MUX_L1 = 1 << 20
"""Bytes of a mux core's L1 for its channels, of 1.4 MiB; the rest is for what it counts and for semaphores."""
CHANNEL_BUFFER = 4400
"""Bytes of one packet in a channel of the mux."""

SHORT = 512
"""Rows of a device's sequence from which on activations lie in DRAM, see :func:`activation_memory`."""
SCRATCH = 1 << 19
"""Bytes of a core's L1 for what lives within one operation, beside 195 KiB of a reduce-scatter's own buffers."""


@dataclass(frozen=True)
class Blocks:
    """Sizes in tiles of a block along M, K and N, and of the part of it that fits the destination registers."""

    m: int
    k: int
    n: int
    subblock_h: int
    subblock_w: int


def blocks(
    rows: int, inner: int, columns: int, grid: tuple[int, int], *, part: int | None = None, ring: bool = False
) -> Blocks:
    """Block sizes for (rows, inner) @ (inner, columns) on ``grid`` (x, y) cores.

    ``minimal_matmul`` lays rows over x if there are more rows than columns, else over y; with a gather always over x.

    Args:
        part: one device's share of ``inner``, where it is gathered on the way; a K block lies within it.
        ring: it is gathered around a ring, where K blocks must divide that share.
    """
    along_m, along_n = grid if rows > columns or part is not None else grid[::-1]
    m = _even(_tiles(rows) / along_m)
    n = _even(_tiles(columns) / along_n)
    h, w = max(
        ((h, w) for h in divisors(m) for w in divisors(n) if h * w <= SUBBLOCK),
        key=lambda hw: (hw[0] * hw[1], min(hw)),
    )
    return Blocks(m, _k_block(_tiles(part or inner), divides=ring), n, h, w)


def matmul_config(rows: int, inner: int, columns: int, grid: tuple[int, int], **more: Any) -> ttnn.MinimalMatmulConfig:
    """:func:`blocks` as ttnn takes them."""
    sizes = blocks(rows, inner, columns, grid, **more)
    return ttnn.MinimalMatmulConfig(
        M_block_size=sizes.m,
        K_block_size=sizes.k,
        N_block_size=sizes.n,
        subblock_h=sizes.subblock_h,
        subblock_w=sizes.subblock_w,
        compute_with_storage_grid_size=ttnn.CoreCoord(*grid),
    )


def activation_memory(rows: int) -> ttnn.MemoryConfig:
    """Where what a layer hands to itself lies (q, k, v before heads are split; a feed-forward's hidden features).
    Those of a single block of FLUX.1 wait for its attention, which needs L1 for itself: they lie in DRAM.

    One rule, by the length of the sequence on a device, after the model's document, which keeps 512 tokens and more in
    DRAM "for large prompts without overloading SRAM": below that, L1 interleaved, which saves a write and a read of
    DRAM. It is never sharded: these matmuls are bound by compute, so that a sharded input gains nothing.
    """
    return ttnn.L1_MEMORY_CONFIG if rows < SHORT else ttnn.DRAM_MEMORY_CONFIG


def scratch_memory(size: int, cores: int) -> ttnn.MemoryConfig:
    """Where ``size`` bytes of one operation's own partial results lie: L1 interleaved if a core's share fits."""
    return ttnn.L1_MEMORY_CONFIG if size <= SCRATCH * cores else ttnn.DRAM_MEMORY_CONFIG


def workers_per_link(columns_of_cores: int, links: int) -> int:
    """Cores of a row that share a link, so that all of them are served; 0 if they cannot be shared out."""
    workers = math.ceil(columns_of_cores / links)
    return workers if math.ceil(columns_of_cores / workers) == links else 0


def buffers_per_channel(workers: int) -> int:
    """Packets that a channel of the mux holds: as many as fit, up to the 48 after which nothing is gained."""
    return min(48, MUX_L1 // (CHANNEL_BUFFER * workers))


def _tiles(size: int) -> int:
    return -(-size // TILE)


def divisors(tiles: int) -> list[int]:
    return [n for n in range(1, tiles + 1) if tiles % n == 0]


def _even(tiles: float) -> int:
    """One core's tiles on average in as few blocks of up to ``LARGEST`` as possible, all about as long."""
    return math.ceil(tiles / math.ceil(tiles / LARGEST))


def _k_block(tiles: int, *, divides: bool) -> int:
    """Choose the cheapest K block: each costs its tiles and one more for its start, padding included."""
    longest = min(LARGEST, tiles)
    if divides:
        return max(k for k in divisors(tiles) if k <= longest)
    return min(range(1, longest + 1), key=lambda k: (math.ceil(tiles / k) * (k + 1), -k))
