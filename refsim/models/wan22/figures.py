"""What others measured of Wan2.2, and how it was run.

The table was written on 19 March 2026, when attention_wan.py@218646a0 gathered first and multiplied then, on a Ring
too, and had no chunks for (sp4, tp2) on Blackhole but the default. Its 168 s of the Blackhole Galaxy are what
test_performance_wan.py allows since 28 February, after a run of 162.8 s (pull request 38690). The Blackhole Galaxy's
figure at 480p is of September: fused, and in the chunks of pull request 41965.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from refsim.base.mesh import Topology
from refsim.models.figures import Execution, Figure, Pair

_A14B = "wan22-t2v-a14b"
_TT_DIT = "tt_dit Wan2_2.md@511bc4d0"
_OTHERS = "tt-metal pull request 34929"
_UNCACHED = "Wan2_2.md@511bc4d0 of tt_dit, no step cached, without export"
_LINE = Execution(steps=40, topology=Topology.LINEAR, day=date(2026, 3, 19))
_RING = replace(_LINE, topology=Topology.RING, fuse=False)
_RAISED = replace(_RING, day=date(2026, 2, 28))
_SEPTEMBER = Execution(steps=40, topology=Topology.RING, chunks=(288, 512))
_JANUARY = replace(_RING, day=date(2026, 1, 12))
FIGURES = (
    Figure(_A14B, "480p", "t3k", "sp2_tp4", 735, _TT_DIT, _LINE),
    Figure(_A14B, "480p", "bh-qb", "sp2_tp2", 466, _TT_DIT, replace(_LINE, fsdp=True)),
    Figure(_A14B, "480p", "bh-loudbox", "sp4_tp2", 207, _TT_DIT, replace(_LINE, chunks=(256, 256))),
    Figure(_A14B, "480p", "bh-galaxy", "sp8_tp4", 46, _UNCACHED, _SEPTEMBER),
    Figure(_A14B, "720p", "galaxy", "sp8_tp4", 354, _TT_DIT, _RING),
    Figure(_A14B, "720p", "bh-galaxy", "sp8_tp4", 168, _TT_DIT, _RAISED),
    Figure(
        *(_A14B, "480p", "t3k", "sp2_tp4", 789, _OTHERS),
        replace(_JANUARY, topology=Topology.LINEAR, fsdp=True),
        judged=False,
    ),
    Figure(_A14B, "720p", "galaxy", "sp8_tp4", 418, _OTHERS, replace(_JANUARY, fsdp=True), judged=False),
    Figure(_A14B, "720p", "bh-galaxy", "sp8_tp4", 199, _OTHERS, _JANUARY, judged=False),
    Pair(
        *(_A14B, "720p", "galaxy", "sp8_tp4", Topology.LINEAR, Topology.RING, 157 / 153, "tt-metal pull request 30988"),
        fused=False,
        of="denoising",
    ),
)
