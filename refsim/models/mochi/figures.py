"""What others measured of Mochi 1."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from refsim.base.mesh import Topology
from refsim.models.figures import Execution, Figure

_MOCHI = "mochi-1"
_OTHERS = "tt-metal pull request 34929"
_TT_DIT = "tt_dit Mochi_1.md@52393d83; host, encoder and decoder as in a run of January on T3000"
_OCTOBER = Execution(
    steps=50, fsdp=True, topology=Topology.LINEAR, chunks=(256, 512), day=date(2025, 10, 29), blocks="whole", busy=0.33
)  # Mochi_1.md@18013a06
_JANUARY = replace(_OCTOBER, fuse=False, chunks=(128, 512), day=date(2026, 1, 12), busy=1.0)
_BEYOND = Figure(_MOCHI, "480p", "t3k", "sp2_tp4", 1029, _OTHERS, _JANUARY, judged=False)
"""What it takes beyond what is predicted (some 910 s), the other figures take as well, whatever the mesh: until
3 June 2026 (44201) the host made the rotation's tables of all heads, 24 x 45056 x 128 twice, in each of the 100
forwards (transformer_mochi.py, prepare_rope_features) and stepped the solver; the encoder was on the host, 4 s, and the
decoder took 55 s at most on T3000 and 22 s on a Galaxy (limits of test_performance_mochi.py@18013a06)."""
FIGURES = (
    Figure(_MOCHI, "480p", "t3k", "sp2_tp4", 1260, _TT_DIT, replace(_OCTOBER, rest=_BEYOND)),
    Figure(_MOCHI, "480p", "galaxy", "sp8_tp4", 391, _TT_DIT, replace(_OCTOBER, rest=_BEYOND)),
    Figure(_MOCHI, "480p", "galaxy", "sp8_tp4", 323, _OTHERS, replace(_JANUARY, rest=_BEYOND), judged=False),
)
