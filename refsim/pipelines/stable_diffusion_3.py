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

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.base.errors import UserError
from refsim.files.checkpoint import Checkpoint
from refsim.models.clip.encoder import CLIPTextEncoder
from refsim.models.sd35.config import SD35Config
from refsim.models.sd35.transformer import SD35Transformer
from refsim.models.t5.encoder import T5Encoder
from refsim.models.vae.config import VAEConfig
from refsim.models.vae.decoder import VAEDecoder
from refsim.pipelines.hosts.stable_diffusion_3 import CLIPS, T5, StableDiffusion3Host, has_t5
from refsim.pipelines.pipeline import Pipeline, Run, check_fit, load_part
from refsim.runtime.device import Device


class StableDiffusion3Pipeline(StableDiffusion3Host, Pipeline):
    """With or without T5."""

    transformer = SD35Transformer
    decoder = VAEDecoder

    def check(self, root: Path, device: Device) -> None:
        _, config = load_part(device, root, "transformer", self.transformer, meta=True)
        clips = [load_part(device, root, name, CLIPTextEncoder, meta=True)[1] for name in CLIPS]
        _, vae = load_part(device, root, "vae", VAEDecoder, meta=True)
        pooled, width = sum(c.projection_dim for c in clips), sum(c.hidden_size for c in clips)
        pairs = [
            ("pooled_projection_dim", config.pooled_projection_dim, "the sum of the projections of both CLIPs", pooled),
            ("in_channels", config.in_channels, "latent_channels of vae", vae.latent_channels),
        ]
        if has_t5(root):
            t5, _ = load_part(device, root, T5, T5Encoder, meta=True)
            pairs.append(("joint_attention_dim", config.joint_attention_dim, f"d_model of {T5}", t5.features))
        check_fit(root, "transformer", pairs)
        if width > config.joint_attention_dim:
            raise UserError(
                f"pipeline '{root}' has joint_attention_dim {config.joint_attention_dim} in transformer but both "
                f"CLIPs side by side are {width} wide."
            )

    def encode(self, run: Run) -> dict[str, Tensor]:
        """Return the prompt rows (B, 77 + L, joint) and pooled (B, P)."""
        sequences, pooled = [], []
        for name in CLIPS:
            clip_encoder, _ = run.load(name, CLIPTextEncoder)
            sequence, end = clip_encoder.encode(run.tensors[name][run.samples])
            sequences.append(sequence)
            pooled.append(end)
            del clip_encoder
        clip = torch.cat(sequences, -1)
        if T5 in run.tensors:
            t5, _ = run.load(T5, T5Encoder)
            rest = t5(run.tensors[T5][run.samples])
        else:
            joint = Checkpoint(run.root / "transformer").as_config(SD35Config).joint_attention_dim
            rest = clip.new_zeros(clip.shape[0], int(run.tensors["max_text"]), joint)
        clip = F.pad(clip, (0, rest.shape[-1] - clip.shape[-1]))
        return {"encoder_hidden_states": torch.cat([clip, rest], -2), "pooled_projections": torch.cat(pooled, -1)}

    def decoder_input(self, run: Run, latents: Tensor, config: VAEConfig) -> Tensor:
        return latents.to(run.storage) / config.scaling_factor + config.shift_factor
