"""Flux.1: prompt and noise in, a picture out.

    prompt --two tokenizers (host)--> tokens
        CLIP-L  end token's row -----> pooled features
        T5      states, no mask -----> prompt (L, joint), all at position 0
    noise (16, h, w) --2 x 2 of a channel side by side--> N = h/2 * w/2 tokens of 64, at positions [0, row, column]
    time steps: shifted by how many tokens the picture has, where the scheduler asks for it

Guidance is an input of the transformer (dev) or absent (schnell), so one sample runs and there is no negative prompt.

Counterpart: diffusers' ``FluxPipeline``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.files.checkpoint import Checkpoint
from refsim.models.clip.encoder import CLIPTextEncoder
from refsim.models.flux1.config import FluxConfig
from refsim.models.flux1.transformer import FluxTransformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae.config import VAEConfig
from refsim.models.vae.decoder import VAEDecoder
from refsim.pipelines.hosts.flux import FluxHost, positions, unpack
from refsim.pipelines.pipeline import Pipeline, Run, check_fit, load_part
from refsim.runtime.device import Device


class FluxPipeline(FluxHost, Pipeline):
    """Dev (guidance as a number) and schnell."""

    transformer = FluxTransformer
    decoder = VAEDecoder

    def check(self, root: Path, device: Device) -> None:
        """See :meth:`Pipeline.check`."""
        _, config = load_part(device, root, "transformer", self.transformer, meta=True)
        _, clip = load_part(device, root, "text_encoder", CLIPTextEncoder, meta=True)
        t5, _ = load_part(device, root, "text_encoder_2", T5Encoder, meta=True)
        _, vae = load_part(device, root, "vae", VAEDecoder, meta=True)
        pooled = clip.projection_dim if clip.projected else clip.hidden_size
        check_fit(
            root,
            "transformer",
            [
                ("pooled_projection_dim", config.pooled_projection_dim, "the width of text_encoder", pooled),
                ("joint_attention_dim", config.joint_attention_dim, "d_model of text_encoder_2", t5.features),
                ("in_channels", config.in_channels, "four times latent_channels of vae", 4 * vae.latent_channels),
            ],
        )

    def encode(self, run: Run) -> dict[str, Tensor]:
        """Both encoders' answers, positions of both streams, and guidance where the transformer takes it."""
        clip, _ = run.load("text_encoder", CLIPTextEncoder)
        _, pooled = clip.encode(run.tensors["clip"])
        del clip
        t5, _ = run.load("text_encoder_2", T5Encoder)
        prompt = t5(run.tensors["t5"])
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

    def decoder_input(self, run: Run, latents: Tensor, config: VAEConfig) -> Tensor:
        """See :meth:`Pipeline.decoder_input`."""
        z = unpack(latents, *run.tensors["grid"].tolist())
        return z.to(run.storage) / config.scaling_factor + config.shift_factor
