"""What others measured of Qwen-Image."""

from __future__ import annotations

from datetime import date

from refsim.base.mesh import Topology
from refsim.models.figures import Execution, Figure

_QWEN = "qwen-image"
_TT_DIT = "tt_dit QwenImage.md@0f03cc60, denoising alone"
_RUN = Execution(steps=50, topology=Topology.LINEAR, day=date(2026, 3, 12), blocks="apart")
FIGURES = (
    Figure(_QWEN, "1024", "quietbox", "cfg2@0_tp4@1", 77, _TT_DIT, _RUN, of="denoising"),
    Figure(_QWEN, "1024", "galaxy", "cfg2_sp4_tp4", 25, _TT_DIT, _RUN, of="denoising"),
)
