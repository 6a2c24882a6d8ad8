"""Wan2.2 text-to-video in TTNN; counterpart of ``refsim.pipelines.wan``.

ids, mask --UMT5--> rows, zero beyond the real tokens
time steps from 1 down to the boundary: transformer with guidance, then transformer_2 with guidance_2
latents * std + mean (host) --> decoder --> frames
"""

from __future__ import annotations

from pathlib import Path

import torch

from refsim.files.checkpoint import Checkpoint
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.pipelines.hosts.base import HostRun
from refsim.pipelines.hosts.wan import WanHost
from tt_impl.pipelines.pipeline import Pipeline


class WanPipeline(WanHost, Pipeline):
    """A14B with its two experts, or one transformer."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return ("text_encoder", *(name for name, _ in self.experts(root)), "vae")

    def decoder_input(self, run: HostRun, latents: torch.Tensor) -> torch.Tensor:
        """See :meth:`PipelineHost.decoder_input`; by the two operations that a device would take."""
        config = Checkpoint(run.root / "vae").as_config(WanVAEConfig)
        z = latents.to(run.storage)
        mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1).to(z) for x in (config.latents_mean, config.latents_std))
        return z * std + mean
