"""Chunk sizes of attention per architecture and configuration.

They are upstream's for SD3.5 (tt_dit): its table has an entry for most configurations, and all but one say the same.
"""

from __future__ import annotations

import ttnn

from refsim.base.options import RunOptions
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import TILE, round_up

_CHUNKS = {("blackhole", 4, 4): (128, 512)}
"""(architecture, sp, tp) -> (q chunk, k chunk)."""
_DEFAULT = (256, 512)
_LOCAL_TILES = (1, 2, 3, 4)
"""Of attention in one piece: chunks of up to 128 rows, their mask and a head's features fit into L1 several times."""


def usual_chunks(options: RunOptions) -> tuple[int, int]:
    """Rows of queries and of keys in a chunk of attention over sp."""
    return _CHUNKS.get((options.mesh.arch, options.parallel.sp, options.parallel.tp), _DEFAULT)


def program_config(ctx: Context, rows: int, *, reserve_row: bool, keys: int | None = None) -> ttnn.SDPAProgramConfig:
    """Chunks no longer than the tile-padded rows; ``reserve_row`` leaves the last core row to the ring's gather.

    ``keys``: how many there are, where they are not the rows of queries.
    """
    grid = ctx.device.compute_with_storage_grid_size()
    q, k = ctx.chunks or usual_chunks(ctx.options)
    tiles, key_tiles = (round_up(n, TILE) for n in (rows, rows if keys is None else keys))
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(grid.x, grid.y - 1 if reserve_row else grid.y),
        q_chunk_size=min(q, tiles),
        k_chunk_size=min(k, key_tiles),
        exp_approx_mode=False,
    )


def local_program_config(ctx: Context, rows: int) -> ttnn.SDPAProgramConfig:
    """For attention in one piece: the largest chunks that divide the tile-padded rows, as ttnn wants them of a mask."""
    grid = ctx.device.compute_with_storage_grid_size()
    chunk = TILE * max(n for n in _LOCAL_TILES if round_up(rows, TILE) % (n * TILE) == 0)
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(grid.x, grid.y), q_chunk_size=chunk, k_chunk_size=chunk, exp_approx_mode=False
    )
