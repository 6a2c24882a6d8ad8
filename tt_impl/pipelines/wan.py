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
from refsim.pipelines.hosts.wan import WanHost
from tt_impl.pipelines.pipeline import Pipeline, Run, decode_latents


class WanPipeline(WanHost, Pipeline):
    """A14B with its two experts, or one transformer."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return ("text_encoder", *(name for name, _ in self.experts(root)), "vae")

    def encode(self, run: Run) -> dict[str, torch.Tensor]:
        """See :meth:`Pipeline.encode`."""
        ids_BL, mask_BL = (run.tensors[name][run.samples] for name in ("input_ids", "attention_mask"))
        encoder = run.load("text_encoder")
        rows = encoder.fetch(encoder.model.encode(ids_BL, mask_BL))
        return {"encoder_hidden_states": rows * mask_BL.unsqueeze(-1).to(rows.dtype)}

    def decode(self, run: Run, latents: torch.Tensor) -> torch.Tensor:
        """See :meth:`Pipeline.decode`."""
        config = Checkpoint(run.root / "vae").as_config(WanVAEConfig)
        z = latents.to(run.storage)
        mean, std = (torch.tensor(x).view(1, -1, 1, 1, 1).to(z) for x in (config.latents_mean, config.latents_std))
        return decode_latents(run, z * std + mean)
