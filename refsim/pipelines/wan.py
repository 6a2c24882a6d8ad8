"""Wan2.2 text-to-video: prompt and noise in, frames out.

    prompt, negative prompt --tokenizer (host)--> ids --UMT5--> embeddings, zero beyond the real tokens
    for every time step t:
        t >= boundary_ratio * 1000:  transformer   (high noise)  with guidance     --> scheduler (host) --> latents
        t <  boundary_ratio * 1000:  transformer_2 (low noise)   with guidance_2   --'
    latents * std + mean --> decoder, frames cut by rows (sp) and columns (tp) --> frames

A folder without ``boundary_ratio`` has one transformer for all steps.

Counterpart: diffusers' ``WanPipeline``.
"""

from __future__ import annotations

from pathlib import Path

from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_wan.decoder import WanVAEDecoder
from refsim.models.wan22.transformer import WanTransformer
from refsim.pipelines.hosts.wan import WanHost
from refsim.pipelines.pipeline import Pipeline, check_fit, check_part
from refsim.runtime.device import Device


class WanPipeline(WanHost, Pipeline):
    """A14B with its two experts, or one transformer."""

    transformer = WanTransformer

    def check(self, root: Path, device: Device) -> None:
        encoder = check_part(device, root, "text_encoder", T5Encoder)
        vae = check_part(device, root, "vae", WanVAEDecoder)
        for name, _ in self.experts(root):
            config = check_part(device, root, name, self.transformer)
            pairs = [
                ("text_dim", config.text_dim, "d_model of text_encoder", encoder.d_model),
                ("in_channels", config.in_channels, "z_dim of vae", vae.z_dim),
            ]
            check_fit(root, name, pairs)
