"""Block sizes of matmuls follow from the sizes and the grid, and fit what the op asks for."""

from __future__ import annotations

import itertools
import math

import pytest

pytest.importorskip("ttnn")

from tt_impl.parallel import programs
from tt_impl.parallel.programs import blocks, buffers_per_channel, workers_per_link

GRIDS = ((8, 8), (8, 9), (11, 10), (12, 10))
L1 = 1464 * 1024


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    "rows,inner,columns", [(2048, 2432, 1920), (352, 2432, 7296), (32, 64, 96), (9472, 5120, 3456)]
)
def test_blocks_fit(grid, rows, inner, columns):
    found = blocks(rows, inner, columns, grid)
    assert found.m % found.subblock_h == 0 and found.n % found.subblock_w == 0
    assert found.subblock_h * found.subblock_w <= programs.SUBBLOCK
    bf16, fp32 = 2 * 1024, 4 * 1024
    taken = 2 * bf16 * found.k * (found.m + found.n) + (2 * bf16 + fp32) * found.m * found.n
    assert taken < L1 - 256 * 1024
    # All cores of both axes have rows and columns, as far as there are tiles.
    along_m, along_n = grid if rows > columns else grid[::-1]
    assert found.m <= math.ceil(math.ceil(rows / 32) / along_m)
    assert found.n <= math.ceil(math.ceil(columns / 32) / along_n)


def test_long_sides_are_cut_evenly():
    """64 tiles of rows on 8 cores are 8 each, one block; 9 would be 5 + 4 rather than 8 + 1."""
    assert blocks(2048, 2432, 1920, (8, 8)).m == 8
    assert blocks(9 * 8 * 32, 2432, 1920, (8, 8)).m == 5


def test_k_blocks_waste_little_and_are_not_short():
    """76 tiles: 11 blocks of 7 pad one tile; 8 would pad four, and 4 would start 19 times."""
    assert blocks(2048, 2432, 1920, (8, 8)).k == 7
    assert blocks(2048, 2560, 1920, (8, 8)).k == 8


@pytest.mark.parametrize("part", [32, 96, 608, 640, 1280])
def test_k_blocks_lie_in_one_devices_part(part):
    on_a_line = blocks(2048, 4 * part, 1920, (8, 7), part=part)
    on_a_ring = blocks(2048, 4 * part, 1920, (8, 7), part=part, ring=True)
    assert on_a_line.k <= part // 32
    assert (part // 32) % on_a_ring.k == 0


def test_links_are_shared_out_among_all_cores():
    for columns, links in itertools.product((8, 11, 12), (1, 2, 4)):
        workers = workers_per_link(columns, links)
        assert workers == 0 or math.ceil(columns / workers) == links
    assert workers_per_link(8, 1) == 8 and workers_per_link(11, 2) == 6
    assert workers_per_link(9, 4) == 3 * (math.ceil(9 / 3) == 4)  # 9 cores are 3 x 3, no four groups


def test_channels_of_a_mux_fit_its_core():
    for workers in (1, 2, 6, 8):
        count = buffers_per_channel(workers)
        assert 8 <= count <= 48 and count * workers * programs.CHANNEL_BUFFER <= programs.MUX_L1
