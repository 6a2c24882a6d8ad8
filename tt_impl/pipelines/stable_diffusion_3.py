"""Stable Diffusion 3 and 3.5 in TTNN; counterpart of ``refsim.pipelines.stable_diffusion_3``.

ids --CLIP-L, CLIP-G, T5, one after the other--> rows and pooled features, joined on the host
rows:    CLIP-L and CLIP-G side by side, features zero-padded to T5's, then T5's rows
latents / scaling + shift (host) --> decoder --> picture
"""

from __future__ import annotations

from pathlib import Path

from refsim.pipelines.hosts.stable_diffusion_3 import CLIPS, T5, StableDiffusion3Host, has_t5
from tt_impl.pipelines.pipeline import Pipeline


class StableDiffusion3Pipeline(StableDiffusion3Host, Pipeline):
    """With or without T5."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return (*CLIPS, *((T5,) if has_t5(root) else ()), "transformer", "vae")
