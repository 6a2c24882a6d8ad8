"""A tiny CogVideoX of diffusers: three heads that divide by nothing, sincos or rotary, every path random."""

from __future__ import annotations

import torch


def make_model(rotary: bool, seed: int = 0, **changes):
    from diffusers import CogVideoXTransformer3DModel

    config = {
        "num_attention_heads": 3,
        "attention_head_dim": 16,
        "time_embed_dim": 12,
        "text_embed_dim": 32,
        "num_layers": 3,
        "sample_width": 12,
        "sample_height": 8,
        "sample_frames": 9,
        "max_text_seq_length": 13,
        "use_rotary_positional_embeddings": rotary,
    }
    model = CogVideoXTransformer3DModel(**{**config, **changes}).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm" in name and p.ndim == 1 and name.endswith("weight") and "linear" not in name
            p.normal_(1.0 if norm else 0.0, 0.2 if p.ndim == 1 else p[0].numel() ** -0.5, generator=generator)
    return model


def make_inputs(text: int, size=(3, 8, 12)) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    frames, height, width = size
    return {
        "hidden_states": torch.randn(2, frames, 16, height, width, generator=g),
        "encoder_hidden_states": torch.randn(2, text, 32, generator=g),
        "timestep": torch.tensor([700.0, 700.0]),
    }


def answer(model, inputs, rotary: bool) -> torch.Tensor:
    """diffusers' forward, rotary tables made by its pipeline's own code."""
    tables = None
    if rotary:
        from diffusers import CogVideoXPipeline

        frames, height, width = (inputs["hidden_states"].shape[i] for i in (1, 3, 4))
        pipe = CogVideoXPipeline.__new__(CogVideoXPipeline)
        pipe.transformer, pipe.vae_scale_factor_spatial = model, 1
        make = CogVideoXPipeline._prepare_rotary_positional_embeddings
        tables = make(pipe, height, width, frames, torch.device("cpu"))
    with torch.no_grad():
        return model(**inputs, image_rotary_emb=tables, return_dict=False)[0]
