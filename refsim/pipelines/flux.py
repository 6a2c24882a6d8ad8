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

from refsim.models.clip.encoder import CLIPTextEncoder
from refsim.models.flux1.transformer import FluxTransformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae.decoder import VAEDecoder
from refsim.pipelines.hosts.flux import FluxHost
from refsim.pipelines.pipeline import Pipeline, check_fit, check_part
from refsim.runtime.device import Device


class FluxPipeline(FluxHost, Pipeline):
    """Dev (guidance as a number) and schnell."""

    transformer = FluxTransformer

    def check(self, root: Path, device: Device) -> None:
        """See :meth:`Pipeline.check`."""
        config = check_part(device, root, "transformer", self.transformer)
        clip = check_part(device, root, "text_encoder", CLIPTextEncoder)
        t5 = check_part(device, root, "text_encoder_2", T5Encoder)
        vae = check_part(device, root, "vae", VAEDecoder)
        pooled = clip.projection_dim if clip.projected else clip.hidden_size
        check_fit(
            root,
            "transformer",
            [
                ("pooled_projection_dim", config.pooled_projection_dim, "the width of text_encoder", pooled),
                ("joint_attention_dim", config.joint_attention_dim, "d_model of text_encoder_2", t5.d_model),
                ("in_channels", config.in_channels, "four times latent_channels of vae", 4 * vae.latent_channels),
            ],
        )
