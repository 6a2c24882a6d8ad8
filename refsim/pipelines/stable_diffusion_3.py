"""Stable Diffusion 3 and 3.5: prompt and noise in, a picture out.

    prompt, negative prompt --three tokenizers (host)--> ids
        CLIP-L, CLIP-G  penultimate states (77 rows) side by side, features zero-padded to T5's --.
        T5 (or zeros where the folder has none) ----------------------------------------------------+--> prompt (rows)
        CLIP-L, CLIP-G  projected end tokens side by side --------------------------------------------> pooled
    for every time step: transformer with guidance --> scheduler (host) --> latents
    latents / scaling + shift --> decoder, picture cut by rows (sp) and columns or channels (tp) --> picture

Counterpart: diffusers' ``StableDiffusion3Pipeline``.
"""

from __future__ import annotations

from pathlib import Path

from refsim.base.errors import UserError
from refsim.models.clip.encoder import CLIPTextEncoder
from refsim.models.sd35.transformer import SD35Transformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae.decoder import VAEDecoder
from refsim.pipelines.hosts.stable_diffusion_3 import CLIPS, T5, StableDiffusion3Host, has_t5
from refsim.pipelines.pipeline import Pipeline, check_fit, check_part
from refsim.runtime.device import Device


class StableDiffusion3Pipeline(StableDiffusion3Host, Pipeline):
    """With or without T5."""

    transformer = SD35Transformer

    def check(self, root: Path, device: Device) -> None:
        config = check_part(device, root, "transformer", self.transformer)
        clips = [check_part(device, root, name, CLIPTextEncoder) for name in CLIPS]
        vae = check_part(device, root, "vae", VAEDecoder)
        pooled = sum(c.projection_dim for c in clips)
        width = sum(c.hidden_size for c in clips)
        pairs = [
            ("pooled_projection_dim", config.pooled_projection_dim, "the sum of the projections of both CLIPs", pooled),
            ("in_channels", config.in_channels, "latent_channels of vae", vae.latent_channels),
        ]
        if has_t5(root):
            t5 = check_part(device, root, T5, T5Encoder)
            pairs.append(("joint_attention_dim", config.joint_attention_dim, f"d_model of {T5}", t5.d_model))
        check_fit(root, "transformer", pairs)
        if width > config.joint_attention_dim:
            raise UserError(
                f"pipeline '{root}' has joint_attention_dim {config.joint_attention_dim} in transformer but both "
                f"CLIPs side by side are {width} wide."
            )
