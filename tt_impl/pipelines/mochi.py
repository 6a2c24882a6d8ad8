"""Mochi 1 in TTNN; counterpart of ``refsim.pipelines.mochi``.

ids, masks --T5--> rows
for every time step: transformer with guidance in fp32 --> Euler flow matching, on the devices
latents * std + mean (host) --> decoder --> frames
"""

from __future__ import annotations

from pathlib import Path

from refsim.pipelines.hosts.mochi import MochiHost
from tt_impl.pipelines.pipeline import Pipeline


class MochiPipeline(MochiHost, Pipeline):
    """Mochi 1."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return "text_encoder", "transformer", "vae"
