"""CogVideoX: prompt and noise in, frames out.

    prompt, negative prompt --tokenizer (host)--> ids --T5 (no mask)--> embeddings
    for every time step: transformer with guidance in fp32 --> scheduler (host) --> latents
    latents / scaling --> decoder, frames cut by rows (sp) and columns (tp) --> frames

Counterpart: diffusers' ``CogVideoXPipeline`` with its DDIM or DPM scheduler.
"""

from __future__ import annotations

from pathlib import Path

from refsim.base.errors import UserError
from refsim.models.cogvideox.transformer import CogVideoXTransformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae_cogvideox.decoder import CogVideoXVAEDecoder
from refsim.pipelines.hosts.cogvideox import CogVideoXHost
from refsim.pipelines.hosts.scheduler import load_scheduler
from refsim.pipelines.pipeline import Pipeline, check_fit, check_part
from refsim.runtime.device import Device

_SCHEDULERS = ("CogVideoXDDIMScheduler", "CogVideoXDPMScheduler")


class CogVideoXPipeline(CogVideoXHost, Pipeline):
    """2b, 5b and 1.5."""

    transformer = CogVideoXTransformer

    def check(self, root: Path, device: Device) -> None:
        config = check_part(device, root, "transformer", self.transformer)
        encoder = check_part(device, root, "text_encoder", T5Encoder)
        vae = check_part(device, root, "vae", CogVideoXVAEDecoder)
        pairs = [
            ("text_embed_dim", config.text_embed_dim, "d_model of text_encoder", encoder.d_model),
            ("in_channels", config.in_channels, "latent_channels of vae", vae.latent_channels),
        ]
        check_fit(root, "transformer", pairs)
        name = type(load_scheduler(root / "scheduler")).__name__
        if name not in _SCHEDULERS:
            raise UserError(f"pipeline '{root}' has a {name}; {' and '.join(_SCHEDULERS)} are supported.")
