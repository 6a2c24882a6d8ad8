"""What Blackhole's matrix engines keep up: firmware lowers the clock of a chip that draws more than its board allows.

    MiniMax-H3, 15 s, on a Galaxy    kernels of a block x 50    a step of the pipeline
    Wormhole, dense attention        12.35 s                    12.44 s      (minimax_h3_wormhole/README.md)
    Blackhole, sparse attention       3.39 s                     3.39 s      (pipelines/minimax_h3/OPTIMIZATIONS.md)
    Blackhole, dense attention        3.74 s                     5.15 to 5.99 s    (``H3_DENOISING``)

The same code on the same machines is slower than its kernels, profiled one block at a time, only where the matrix
engines of a Blackhole are busiest, traced or not (tt-metal pull request 55877); issues 35990, 37383 and 37942 name the
limit as the cause of other workloads' lower clocks. So it holds of a whole denoising loop, not of a kernel or Wormhole.
"""

from __future__ import annotations

import math
from statistics import geometric_mean

from refsim.base.mesh import MeshSpec
from refsim.timing.cost.chips import CYCLES_PER_TILE
from refsim.timing.cost.history import P300_MESHES

H3_DENOISING = (252.3, 265.7, 293.265)
"""Seconds of 49 forwards of MiniMax-H3, 15 s of 1344 x 768, dense attention, on Blackhole Galaxies:
MiniMaxH3.md@040c05ae, pipelines/minimax_h3/OPTIMIZATIONS.md@02d862e7, tt-metal pull request 55878."""
H3_TFLOP = 49 * 21_340 / 32
"""TFLOP of a chip in them (minimax_h3_wormhole/README.md: 21.34 PFLOP a forward)."""
GALAXY_WATTS = 130.0
P150_WATTS = 150.0
P300_WATTS = 125.0
"""``tdp_limit`` of a chip (tt-system-firmware, fw_table.txt of GALAXY, P150B and P300C_L)."""
SUSTAINED_TFLOPS = geometric_mean(H3_TFLOP / seconds for seconds in H3_DENOISING)
"""Of a Blackhole at HiFi2 and ``GALAXY_WATTS``: 121, three runs within 8 % of it."""


def watts(mesh: MeshSpec) -> float:
    """Return the limit of a chip of a mesh; Wormhole's was never seen to bind."""
    if mesh.arch != "blackhole":
        return math.inf
    if mesh.num_devices >= 32:
        return GALAXY_WATTS
    return P300_WATTS if mesh.name in P300_MESHES else P150_WATTS


def least_ns(flops: float, mesh: MeshSpec, fidelity: str) -> float:
    """Return the ns that ``flops`` on each chip take at least in the long run.

    Assumed: as much is computed a joule at any limit, and the engines draw as much a cycle at any fidelity.
    """
    rate = SUSTAINED_TFLOPS * watts(mesh) / GALAXY_WATTS * CYCLES_PER_TILE["HiFi2"] / CYCLES_PER_TILE[fidelity]
    return flops / (rate * 1000)
