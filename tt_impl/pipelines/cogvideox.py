"""CogVideoX in TTNN; counterpart of ``refsim.pipelines.cogvideox``.

ids --T5 (no mask)--> rows
for every time step: transformer with guidance in fp32 --> DDIM, or a DPM with fresh noise, on the devices
latents / scaling (host), frames that only filled a patch left out --> decoder --> frames
"""

from __future__ import annotations

from pathlib import Path

from refsim.pipelines.hosts.cogvideox import CogVideoXHost
from tt_impl.pipelines.pipeline import Pipeline


class CogVideoXPipeline(CogVideoXHost, Pipeline):
    """2b, 5b and 1.5."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return "text_encoder", "transformer", "vae"
