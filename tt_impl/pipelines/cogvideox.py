"""CogVideoX in TTNN; counterpart of ``refsim.pipelines.cogvideox``.

ids --T5 (no mask)--> rows
for every time step: transformer with guidance in fp32 --> DDIM, or a DPM with fresh noise, on the devices
latents / scaling (host), frames that only filled a patch left out --> decoder --> frames
"""

from __future__ import annotations

from pathlib import Path

import torch

from refsim.files.checkpoint import Checkpoint
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.pipelines.hosts.cogvideox import CogVideoXHost
from tt_impl.pipelines.pipeline import Pipeline, Run, decode_latents


class CogVideoXPipeline(CogVideoXHost, Pipeline):
    """2b, 5b and 1.5."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return "text_encoder", "transformer", "vae"

    def encode(self, run: Run) -> dict[str, torch.Tensor]:
        """See :meth:`Pipeline.encode`."""
        encoder = run.load("text_encoder")
        return {"encoder_hidden_states": encoder.fetch(encoder.model.encode(run.tensors["input_ids"][run.samples]))}

    def decode(self, run: Run, latents: torch.Tensor) -> torch.Tensor:
        """See :meth:`Pipeline.decode`."""
        config = Checkpoint(run.root / "vae").as_config(CogVideoXVAEConfig)
        asked = latents[:, int(run.tensors["spare"]) :].permute(0, 2, 1, 3, 4)  # (1, C, F, h, w)
        return decode_latents(run, asked.to(run.storage) / config.scaling_factor)
