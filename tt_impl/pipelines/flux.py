"""Flux.1 in TTNN; counterpart of ``refsim.pipelines.flux``.

ids --CLIP-L--> pooled features   ids --T5--> rows, all at position 0
latents: packed tokens [0, row, column]; guidance is a number to the transformer (dev) or absent (schnell)
latents --unpack--> / scaling + shift (host) --> decoder --> picture
"""

from __future__ import annotations

from pathlib import Path

from refsim.pipelines.hosts.flux import FluxHost
from tt_impl.pipelines.pipeline import Pipeline


class FluxPipeline(FluxHost, Pipeline):
    """Dev (guidance as a number) and schnell."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return "text_encoder", "text_encoder_2", "transformer", "vae"
