"""Qwen-Image in TTNN; counterpart of ``refsim.pipelines.qwenimage``.

prompts --Qwen2.5-VL (host, by transformers)--> states and mask
for every time step: both prompts' predictions, one after the other --> guidance, on the devices, in fp32
latents * std + mean (host) --> decoder --> picture
"""

from __future__ import annotations

from pathlib import Path

import ttnn

from refsim.pipelines.hosts.qwenimage import QwenImageHost
from tt_impl.parallel.cfg import guide
from tt_impl.pipelines.pipeline import Pipeline


class QwenImagePipeline(QwenImageHost, Pipeline):
    """Text to picture; the text encoder runs on the host."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return "transformer", "vae"

    def guided(self, sample: ttnn.Tensor, scale: float) -> ttnn.Tensor:
        """Guide, then give every token the length that the positive prompt's prediction has."""
        both = ttnn.typecast(sample, ttnn.float32)
        combined = guide(both, scale)
        wanted, length = (_lengths(x) for x in (both[both.shape[0] // 2 :], combined))
        return ttnn.multiply(combined, ttnn.div(wanted, length))


def _lengths(x: ttnn.Tensor) -> ttnn.Tensor:
    """Return the length of every row, (B, 1, N, 1)."""
    return ttnn.sqrt(ttnn.sum(ttnn.square(x), dim=-1, keepdim=True))
