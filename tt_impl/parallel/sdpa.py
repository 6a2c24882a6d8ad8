"""Chunk sizes of attention per architecture and configuration.

They are upstream's for SD3.5 (tt_dit): its table has an entry for most configurations, and all but one say the same.
"""

from __future__ import annotations

import ttnn

from tt_impl.parallel.context import Context

_CHUNKS = {(True, 4, 4): (128, 512)}
"""(blackhole, sp, tp) -> (q chunk, k chunk)."""
_DEFAULT = (256, 512)
_LOCAL_TILES = 4
"""Of attention in one piece: chunks of 128 rows, their mask and a head's features fit into L1 several times."""


def program_config(ctx: Context, rows: int, *, reserve_row: bool, keys: int | None = None) -> ttnn.SDPAProgramConfig:
    """Chunks no longer than the tile-padded rows; ``reserve_row`` leaves the last core row to the ring's gather.

    ``keys``: how many there are, where they are not the rows of queries.
    """
    grid = ctx.device.compute_with_storage_grid_size()
    blackhole = ctx.options.mesh.arch == "blackhole"
    q, k = ctx.chunks or _CHUNKS.get((blackhole, ctx.sp, ctx.tp), _DEFAULT)
    tiles, key_tiles = (-(-n // ttnn.TILE_SIZE) * ttnn.TILE_SIZE for n in (rows, rows if keys is None else keys))
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(grid.x, grid.y - 1 if reserve_row else grid.y),
        q_chunk_size=min(q, tiles),
        k_chunk_size=min(k, key_tiles),
        exp_approx_mode=False,
    )


def local_program_config(ctx: Context, rows: int) -> ttnn.SDPAProgramConfig:
    """For attention in one piece: the largest chunks that divide the tile-padded rows, as ttnn wants them of a mask."""
    grid = ctx.device.compute_with_storage_grid_size()
    tiles = -(-rows // ttnn.TILE_SIZE)
    chunk = ttnn.TILE_SIZE * max(n for n in range(1, _LOCAL_TILES + 1) if tiles % n == 0)
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(grid.x, grid.y),
        q_chunk_size=chunk,
        k_chunk_size=chunk,
        exp_approx_mode=False,
    )
