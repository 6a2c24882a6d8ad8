"""What others measured of Motif-6B."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from refsim.base.mesh import Topology
from refsim.models.figures import Execution, Figure

_MOTIF = "motif-6b"
_OTHERS = "tt-metal pull request 34929"
_WRITTEN = Execution(steps=20, topology=Topology.LINEAR, day=date(2025, 11, 21), blocks="apart")
_JANUARY = replace(_WRITTEN, steps=28, day=date(2026, 1, 12), fuse=False)
FIGURES = (
    Figure(_MOTIF, "1024", "quietbox", "cfg2_sp2_tp2", 10.5, "tt_dit Motif.md@2aed6ed4", _WRITTEN),
    Figure(_MOTIF, "1024", "t3k", "cfg2@0_tp4@1", 14.1, _OTHERS, _JANUARY, judged=False),
    Figure(_MOTIF, "1024", "galaxy", "cfg2_sp4_tp4", 5.9, _OTHERS, _JANUARY, judged=False),
)
