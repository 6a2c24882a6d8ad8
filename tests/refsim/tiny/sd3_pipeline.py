"""A tiny diffusers StableDiffusion3Pipeline with both CLIPs, T5 and tokenizers of words."""

from __future__ import annotations

import torch

from tests.refsim.tiny.sd_vae import make_vae
from tests.refsim.tiny.text import make_clip, make_encoder, make_tokenizer


def make_transformer(seed: int = 0):
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=3,
        caption_projection_dim=48,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
        joint_attention_dim=64,
        pooled_projection_dim=40,
        pos_embed_max_size=24,
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm_" in name and p.ndim == 1 and name.endswith("weight")
            spread = 0.2 if p.ndim == 1 else p[0].numel() ** -0.5
            p.normal_(1.0 if norm else 0.0, spread, generator=generator)
    return model


def make_clip_tokenizer():
    """Make the tokenizer of words, ended at 77 ids as CLIP's is."""
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 77
    return tokenizer


def make_pipeline(**changes):
    from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

    parts = {
        "tokenizer": make_clip_tokenizer(),
        "tokenizer_2": make_clip_tokenizer(),
        "tokenizer_3": make_tokenizer(),
        "text_encoder": make_clip(0),
        "text_encoder_2": make_clip(1, hidden_act="gelu"),
        "text_encoder_3": make_encoder("t5", d_model=64),
        "vae": make_vae(),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
        "transformer": make_transformer(),
    }
    pipe = StableDiffusion3Pipeline(**{**parts, **changes})
    pipe.set_progress_bar_config(disable=True)
    return pipe
