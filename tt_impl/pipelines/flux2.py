"""FLUX.2 in TTNN; counterpart of ``refsim.pipelines.flux2``.

prompt --Mistral 3 (host, by transformers)--> three hidden states side by side, at positions 0 .. L
latents: tokens of whole patches at rows and columns; guidance is a number to the transformer
latents * spread + mean of the batch norm, unpatched (host) --> decoder --> picture
"""

from __future__ import annotations

from pathlib import Path

from refsim.pipelines.hosts.flux2 import Flux2Host
from tt_impl.pipelines.pipeline import Pipeline


class Flux2Pipeline(Flux2Host, Pipeline):
    """Dev."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return "transformer", "vae"
