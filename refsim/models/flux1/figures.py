"""What others measured of Flux.1. Chunks of attention: transformer_flux1.py@622c6fb9."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from refsim.base.mesh import Topology
from refsim.models.figures import Execution, Figure

_TT_DIT = "tt_dit Flux1.md@8027459d"
_OTHERS = "tt-metal pull request 34929"
_DEV = Execution(steps=28, topology=Topology.LINEAR, chunks=(128, 512), day=date(2025, 11, 21), blocks="apart")
_SCHNELL = replace(_DEV, steps=4)
_JANUARY = replace(_DEV, day=date(2026, 1, 12), fuse=False)
FIGURES = (
    Figure("flux1-dev", "1024", "quietbox", "sp2_tp4", 21.6, _TT_DIT, _DEV),
    Figure("flux1-dev", "1024", "galaxy", "sp4_tp8", 8.0, _TT_DIT, _DEV),
    Figure("flux1-dev", "1024", "t3k", "sp2_tp4", 20.5, _OTHERS, _JANUARY, judged=False),
    Figure("flux1-dev", "1024", "galaxy", "sp4_tp8", 7.6, _OTHERS, _JANUARY, judged=False),
    Figure("flux1-schnell", "1024", "quietbox", "sp2_tp4", 4.7, _TT_DIT, _SCHNELL),
    Figure("flux1-schnell", "1024", "galaxy", "sp4_tp8", 2.4, _TT_DIT, _SCHNELL),
)
