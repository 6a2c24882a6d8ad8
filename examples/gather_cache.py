"""A cache of gather buffers that is never emptied: on a Galaxy, out of memory at the ninth of twelve shapes.

    refsim ttnn run --mesh galaxy --values off examples/gather_cache.py         DRAM
    refsim ttnn run --mesh galaxy --values off examples/gather_cache.py L1

It ends out of memory, which is what it is for: the report says which line holds what, how much is free in one piece,
and what to free. Seconds, and less than a gigabyte of the machine's own memory.
"""

from __future__ import annotations

import sys
from typing import Any

import ttnn

ROWS = {"DRAM": 32768, "L1": 512}
PLACES = {"DRAM": ttnn.DRAM_MEMORY_CONFIG, "L1": ttnn.L1_MEMORY_CONFIG}
WIDTH = 3072
SHAPES = 12


def main(place: str = "DRAM") -> None:
    """Gather tensors of twelve lengths, each into a buffer of its own."""
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    rows, columns = {32: (8, 4), 8: (2, 4)}[ttnn.get_num_devices()]
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(rows, columns))
    grid = mesh.compute_with_storage_grid_size()
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(grid.x - 1, grid.y - 1))})
    semaphores = [ttnn.create_global_semaphore(mesh, cores, 0) for _ in range(2)]
    kind = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": mesh}
    buffers: dict[int, Any] = {}
    for number in range(SHAPES):
        length = ROWS[place] + number * ROWS[place] // 8
        x = ttnn.zeros((1, 1, length, WIDTH), **kind)
        if length not in buffers:
            buffers[length] = ttnn.empty((1, 1, length, WIDTH * columns), **kind, memory_config=PLACES[place])
        ttnn.experimental.all_gather_async(
            x,
            persistent_output_buffer=buffers[length],
            dim=3,
            multi_device_global_semaphore=semaphores,
            cluster_axis=1,
            memory_config=PLACES[place],
            topology=ttnn.Topology.Linear,
            num_links=1,
        )
        ttnn.synchronize_device(mesh)
        print(f"gathered {length} rows into one of {len(buffers)} buffers")


if __name__ == "__main__":
    main(*sys.argv[1:])
