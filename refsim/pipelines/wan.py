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

import torch
from torch import Tensor

from refsim.checkpoint import Checkpoint
from refsim.errors import UserError
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_wan.decoder import WanVAEDecoder
from refsim.models.wan22.transformer import WanTransformer
from refsim.pipelines.pipeline import Pipeline, Run, check_fit, load_part
from refsim.pipelines.request import PipelineRequest, load_tokenizer, read_index
from refsim.runtime.device import Device

_HEIGHT, _WIDTH, _FRAMES, _TEXT = 480, 832, 81, 512


class WanPipeline(Pipeline):
    """A14B with its two experts, or one transformer."""

    transformer = WanTransformer
    fps = 16

    def experts(self, root: Path) -> tuple[tuple[str, float], ...]:
        index = read_index(root)
        if index.get("expand_timesteps"):
            raise UserError(f"'{root}' is a TI2V pipeline (expand_timesteps); the T2V pipeline is supported.")
        boundary = index.get("boundary_ratio")
        return super().experts(root) if boundary is None else (("transformer", boundary), ("transformer_2", 0.0))

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

    def prepare(self, root: Path, request: PipelineRequest) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask`` (2, L), and ``latents`` (1, C, T, H, W)."""
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean

        vae, transformer = Checkpoint(root / "vae").config, Checkpoint(root / "transformer").config
        temporal, spatial = vae.get("scale_factor_temporal", 4), vae.get("scale_factor_spatial", 8)
        _, rows, columns = (spatial * p for p in transformer.get("patch_size", (1, 2, 2)))
        height, width = request.size(_HEIGHT, _WIDTH, (rows, columns))
        frames = request.latent_frames(_FRAMES, temporal)
        tokens = load_tokenizer(root / "tokenizer")(
            [prompt_clean(text) for text in self.texts(request)],
            padding="max_length",
            max_length=request.max_text or _TEXT,
            truncation=True,
            add_special_tokens=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        size = (transformer.get("in_channels", 16), frames, height // spatial, width // spatial)
        latents = torch.randn((1, *size), generator=torch.Generator().manual_seed(request.seed))
        return {"latents": latents, "input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask}

    def encode(self, run: Run) -> dict[str, Tensor]:
        ids_BL, mask_BL = (run.tensors[name][run.samples] for name in ("input_ids", "attention_mask"))
        encoder, _ = run.load("text_encoder", T5Encoder)
        return {"encoder_hidden_states": encoder(ids_BL, mask_BL) * mask_BL.unsqueeze(-1).to(run.storage)}

    def decode(self, run: Run, latents: Tensor) -> Tensor:
        decoder, config = run.load("vae", WanVAEDecoder)
        return decoder(z=decoder.denormalize(latents.to(run.storage), config))
