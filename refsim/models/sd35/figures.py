"""What others measured of Stable Diffusion 3.5. Chunks of attention_sd35.py, whose linears gather first and multiply
then (transformer_sd35.py@622c6fb9).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from refsim.base.mesh import Topology
from refsim.models.figures import Execution, Figure, Pair

_LARGE = "sd35-large"
_TT_DIT = "tt_dit StableDiffusion35.md@02e73163"
_OTHERS = "tt-metal pull request 34929"
_WRITTEN = Execution(steps=20, topology=Topology.LINEAR, day=date(2025, 9, 18))
_ONE_LINE = Execution(steps=20, topology=Topology.RING, fuse=False, chunks=(256, 512))
_JANUARY = replace(_WRITTEN, day=date(2026, 1, 12), fuse=False)
FIGURES = (
    Figure(_LARGE, "1024", "quietbox", "cfg2_sp2_tp2", 12.2, _TT_DIT, _WRITTEN),
    Figure(_LARGE, "1024", "galaxy", "cfg2_sp4_tp4", 5.6, _TT_DIT, replace(_WRITTEN, busy=0.33)),
    Figure(_LARGE, "1024", "bh-qb-1x4", "tp4", 6.8, _TT_DIT, _ONE_LINE),
    Figure(_LARGE, "1024", "t3k", "cfg2_sp2_tp2", 12.0, _OTHERS, _JANUARY, judged=False),
    Figure(_LARGE, "1024", "galaxy", "cfg2_sp4_tp4", 5.3, _OTHERS, _JANUARY, judged=False),
    Pair(
        *(_LARGE, "1024", "bh-qb-1x4", "tp4", Topology.LINEAR, Topology.RING, 8.38 / 7.2),
        "tt_dit StableDiffusion3_nadim_optim.md@ada23952",
        fused=False,
    ),
)
