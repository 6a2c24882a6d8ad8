"""CogVideoX: prompt and noise in, frames out.

    prompt, negative prompt --tokenizer (host)--> ids --T5 (no mask)--> embeddings
    for every time step: transformer with guidance in fp32 --> scheduler (host) --> latents
    latents / scaling --> decoder, frames cut by rows (sp) and columns (tp) --> frames

Counterpart: diffusers' ``CogVideoXPipeline`` with its DDIM or DPM scheduler.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from refsim.base.errors import UserError
from refsim.models.cogvideox.transformer import CogVideoXTransformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_cogvideox.config import CogVideoXVAEConfig
from refsim.models.vae_cogvideox.decoder import CogVideoXVAEDecoder
from refsim.pipelines.hosts.cogvideox import CogVideoXHost
from refsim.pipelines.hosts.scheduler import load_scheduler
from refsim.pipelines.pipeline import Pipeline, Run, check_fit, load_part
from refsim.runtime.device import Device

_SCHEDULERS = ("CogVideoXDDIMScheduler", "CogVideoXDPMScheduler")


class CogVideoXPipeline(CogVideoXHost, Pipeline):
    """2b, 5b and 1.5."""

    transformer = CogVideoXTransformer
    decoder = CogVideoXVAEDecoder

    def check(self, root: Path, device: Device) -> None:
        _, config = load_part(device, root, "transformer", self.transformer, meta=True)
        encoder, _ = load_part(device, root, "text_encoder", T5Encoder, meta=True)
        _, vae = load_part(device, root, "vae", CogVideoXVAEDecoder, meta=True)
        pairs = [
            ("text_embed_dim", config.text_embed_dim, "d_model of text_encoder", encoder.features),
            ("in_channels", config.in_channels, "latent_channels of vae", vae.latent_channels),
        ]
        check_fit(root, "transformer", pairs)
        name = type(load_scheduler(root / "scheduler")).__name__
        if name not in _SCHEDULERS:
            raise UserError(f"pipeline '{root}' has a {name}; {' and '.join(_SCHEDULERS)} are supported.")

    def encode(self, run: Run) -> dict[str, Tensor]:
        encoder, _ = run.load("text_encoder", T5Encoder)
        return {"encoder_hidden_states": encoder(run.tensors["input_ids"][run.samples])}

    def decoder_input(self, run: Run, latents: Tensor, config: CogVideoXVAEConfig) -> Tensor:
        asked = latents[:, int(run.tensors["spare"]) :].permute(0, 2, 1, 3, 4)  # (1, C, F, h, w)
        return asked.to(run.storage) / config.scaling_factor
