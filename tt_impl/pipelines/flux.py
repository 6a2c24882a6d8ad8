"""Flux.1 in TTNN; counterpart of ``refsim.pipelines.flux``.

ids --CLIP-L--> pooled features   ids --T5--> rows, all at position 0
latents: packed tokens [0, row, column]; guidance is a number to the transformer (dev) or absent (schnell)
latents --unpack--> / scaling + shift (host) --> decoder --> picture
"""

from __future__ import annotations

from pathlib import Path

import torch

from refsim.files.checkpoint import Checkpoint
from refsim.models.flux1.config import FluxConfig
from refsim.models.vae.config import VAEConfig
from refsim.pipelines.hosts.flux import FluxHost, positions, unpack
from tt_impl.pipelines.pipeline import Pipeline, Run, decode_latents
from tt_impl.pipelines.stable_diffusion_3 import encode_clip


class FluxPipeline(FluxHost, Pipeline):
    """Dev (guidance as a number) and schnell."""

    def parts(self, root: Path) -> tuple[str, ...]:
        """See :meth:`Pipeline.parts`."""
        return "text_encoder", "text_encoder_2", "transformer", "vae"

    def encode(self, run: Run) -> dict[str, torch.Tensor]:
        """Both encoders' answers, positions of both streams, and guidance where the transformer takes it."""
        _, pooled = encode_clip(run, "text_encoder", run.tensors["clip"])
        t5 = run.load("text_encoder_2")
        prompt = t5.fetch(t5.model.encode(run.tensors["t5"]))
        rows, columns = run.tensors["grid"].tolist()
        conditions = {
            "encoder_hidden_states": prompt,
            "pooled_projections": pooled,
            "img_ids": positions(rows, columns),
            "txt_ids": torch.zeros(prompt.shape[1], 3),
        }
        if Checkpoint(run.root / "transformer").as_config(FluxConfig).guidance_embeds:
            conditions["guidance"] = torch.full((1,), run.request.guidance)
        return conditions

    def decode(self, run: Run, latents: torch.Tensor) -> torch.Tensor:
        """See :meth:`Pipeline.decode`."""
        config = Checkpoint(run.root / "vae").as_config(VAEConfig)
        z = unpack(latents, *run.tensors["grid"].tolist()).to(run.storage)
        return decode_latents(run, z / config.scaling_factor + config.shift_factor).unsqueeze(2)
