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

from torch import Tensor

from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.vae_wan.decoder import WanVAEDecoder
from refsim.models.wan22.transformer import WanTransformer
from refsim.pipelines.hosts.wan import WanHost
from refsim.pipelines.pipeline import Pipeline, Run, check_fit, load_part
from refsim.runtime.device import Device


class WanPipeline(WanHost, Pipeline):
    """A14B with its two experts, or one transformer."""

    transformer = WanTransformer
    decoder = WanVAEDecoder

    def check(self, root: Path, device: Device) -> None:
        encoder, _ = load_part(device, root, "text_encoder", T5Encoder, meta=True)
        _, vae = load_part(device, root, "vae", WanVAEDecoder, meta=True)
        for name, _ in self.experts(root):
            _, config = load_part(device, root, name, self.transformer, meta=True)
            pairs = [
                ("text_dim", config.text_dim, "d_model of text_encoder", encoder.features),
                ("in_channels", config.in_channels, "z_dim of vae", vae.z_dim),
            ]
            check_fit(root, name, pairs)

    def encode(self, run: Run) -> dict[str, Tensor]:
        ids_BL, mask_BL = (run.tensors[name][run.samples] for name in ("input_ids", "attention_mask"))
        encoder, _ = run.load("text_encoder", T5Encoder)
        return {"encoder_hidden_states": encoder(ids_BL, mask_BL) * mask_BL.unsqueeze(-1).to(run.storage)}

    def decoder_input(self, run: Run, latents: Tensor, config: WanVAEConfig) -> Tensor:
        return WanVAEDecoder.denormalize(latents.to(run.storage), config)
