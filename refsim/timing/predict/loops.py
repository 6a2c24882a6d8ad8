"""What a denoising loop takes beyond the kernels of its programs, from public runs; no judged figure has a part.

    Wormhole    a gap before every program of a mesh. A step of MiniMax-H3 takes 12.44 s, the kernels of its blocks
                12.35 s: 50 blocks of 69 calls (minimax_h3_wormhole/README.md).
    Blackhole   a factor. The loops of ``published.UNSEEN_LOOPS`` take 1.1 to 1.4 times what their kernels are predicted
                to take: Wan2.2-TI2V-5B 1.3 times at each of three sizes, so that it grows with the kernels, not with
                their number; and a step of MiniMax-H3 with sparse attention takes the 3.39 s of its kernels
                (pipelines/minimax_h3/OPTIMIZATIONS.md), so that there is no gap. One model counts once.

A loop at its power limit (``power.py``) takes what was measured there, whole loops, and no factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import geometric_mean
from typing import Any

from refsim.base.mesh import MeshSpec
from refsim.timing.predict import ranges

GAP_NS = (12.44 - 12.35) * 1e9 / (50 * 69)
"""26 us, of a Wormhole in a mesh."""


def gap_ns(mesh: MeshSpec, traced_ns: float) -> float:
    """Return the ns from one program to the next one in a loop on a mesh; ``traced_ns``: those of one chip."""
    return max(traced_ns, GAP_NS) if mesh.arch == "wormhole_b0" and mesh.num_devices > 1 else traced_ns


def factor(arch: str, known: Iterable[dict[str, Any]] | None = None) -> float:
    """Return how many times as long as its kernels a loop takes.

    Args:
        known: loops with ``arch``, ``model`` and ``beyond``; those that are kept if not given.
    """
    if arch != "blackhole":
        return 1.0
    by_model: dict[str, list[float]] = {}
    for row in ranges.measured_loops() if known is None else known:
        if row["arch"] == arch:
            by_model.setdefault(row["model"], []).append(row["beyond"])
    return geometric_mean(geometric_mean(each) for each in by_model.values())
