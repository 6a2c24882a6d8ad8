"""A tiny diffusers CogVideoXPipeline with T5, a tokenizer of words and the video autoencoder."""

from __future__ import annotations

import torch

from tests.refsim.tiny.cogvideox import make_model
from tests.refsim.tiny.text import make_encoder, make_tokenizer


def make_pipeline(rotary: bool, *, patch_size_t: int | None = None, **changes):
    from diffusers import AutoencoderKLCogVideoX, CogVideoXDDIMScheduler, CogVideoXPipeline

    torch.manual_seed(3)
    vae = AutoencoderKLCogVideoX(
        block_out_channels=(8, 8, 8, 8),
        latent_channels=16,
        layers_per_block=1,
        norm_num_groups=4,
        temporal_compression_ratio=4,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
    ).eval()
    parts = {
        "tokenizer": make_tokenizer(),
        "text_encoder": make_encoder("t5", d_model=32),
        "vae": vae,
        "transformer": make_model(rotary, patch_size_t=patch_size_t),
        "scheduler": CogVideoXDDIMScheduler(),
    }
    pipe = CogVideoXPipeline(**{**parts, **changes})
    pipe.set_progress_bar_config(disable=True)
    return pipe
