"""Mochi 1: prompt and noise in, frames out.

    prompt, negative prompt --tokenizer (host)--> ids, masks of two lengths --T5--> embeddings
    for every time step: transformer with guidance in fp32 --> scheduler (host) --> latents
    latents * std + mean --> decoder, frames cut by rows (sp) and columns (tp) --> frames

Counterpart: diffusers' ``MochiPipeline``.
"""

from __future__ import annotations

from pathlib import Path

from refsim.models.mochi.transformer import MochiTransformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_mochi.decoder import MochiVAEDecoder
from refsim.pipelines.hosts.mochi import MochiHost
from refsim.pipelines.pipeline import Pipeline, check_fit, check_part
from refsim.runtime.device import Device


class MochiPipeline(MochiHost, Pipeline):
    """Mochi 1."""

    transformer = MochiTransformer

    def check(self, root: Path, device: Device) -> None:
        """See :meth:`Pipeline.check`."""
        config = check_part(device, root, "transformer", self.transformer)
        encoder = check_part(device, root, "text_encoder", T5Encoder)
        vae = check_part(device, root, "vae", MochiVAEDecoder)
        pairs = [
            ("text_embed_dim", config.text_embed_dim, "d_model of text_encoder", encoder.d_model),
            ("in_channels", config.in_channels, "latent_channels of vae", vae.latent_channels),
        ]
        check_fit(root, "transformer", pairs)
