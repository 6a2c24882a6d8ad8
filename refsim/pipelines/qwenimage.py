"""Qwen-Image: prompt and noise in, a picture out.

    prompt, negative prompt --template, tokenizer, Qwen2.5-VL by transformers (host)--> states and mask
    noise (16, h, w) --2 x 2 of a channel side by side--> N = h/2 * w/2 tokens of 64
    for every time step: both prompts' predictions --> negative + s (positive - negative), as long as the positive one
    latents * std + mean --> decoder --> picture

Counterpart: diffusers' ``QwenImagePipeline``; its guidance is ``true_cfg_scale``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from refsim.models.qwenimage.transformer import QwenImageTransformer
from refsim.models.vae_wan.decoder import WanVAEDecoder
from refsim.parallel.cfg import guide
from refsim.pipelines.hosts.qwenimage import QwenImageHost, text_features
from refsim.pipelines.pipeline import Pipeline, check_fit, check_part
from refsim.runtime.device import Device


class QwenImagePipeline(QwenImageHost, Pipeline):
    """Text to picture; the text encoder runs on the host."""

    transformer = QwenImageTransformer

    def check(self, root: Path, device: Device) -> None:
        """See :meth:`Pipeline.check`."""
        config = check_part(device, root, "transformer", self.transformer)
        vae = check_part(device, root, "vae", WanVAEDecoder)
        text = text_features(root)
        pairs = [
            ("joint_attention_dim", config.joint_attention_dim, "hidden_size of text_encoder", text),
            ("in_channels", config.in_channels, "four times z_dim of vae", 4 * vae.z_dim),
        ]
        check_fit(root, "transformer", pairs)

    def guided(self, sample: Tensor, scale: float) -> Tensor:
        """Guide, then give every token the length that the positive prompt's prediction has."""
        combined = guide(sample, scale)
        wanted, length = (torch.norm(x, dim=-1, keepdim=True) for x in (sample.chunk(2)[1], combined))
        return combined * (wanted / length)
