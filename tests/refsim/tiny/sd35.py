"""A tiny SD3.5 of diffusers that reaches every branch: dual attention, qk norm, padded heads, last block, crop."""

from __future__ import annotations

from pathlib import Path

import torch

CONFIG = {
    "sample_size": 16,
    "num_layers": 3,
    "num_attention_heads": 3,
    "attention_head_dim": 16,
    "joint_attention_dim": 64,
    "caption_projection_dim": 48,
    "pooled_projection_dim": 40,
    "pos_embed_max_size": 24,
    "dual_attention_layers": (0,),
    "qk_norm": "rms_norm",
}


def make_model(seed: int = 0, **changes):
    """diffusers' model with weights that leave nothing inert (norm weights and biases are randomised too)."""
    from diffusers import SD3Transformer2DModel

    torch.manual_seed(seed)
    model = SD3Transformer2DModel(**{**CONFIG, **changes}).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if ".norm_" in name else 0.0, 0.2)
            else:
                parameter.normal_(0.0, 1.5 / parameter[0].numel() ** 0.5)
    return model


def make_inputs(seed: int = 1, batch: int = 2, latent: tuple[int, int] = (12, 20), text: int = 29) -> dict:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "hidden_states": normal(batch, 16, *latent),
        "encoder_hidden_states": normal(batch, text, CONFIG["joint_attention_dim"]),
        "pooled_projections": normal(batch, CONFIG["pooled_projection_dim"]),
        "timestep": torch.full((batch,), 602.5),
    }


def save(model, folder: Path, **how) -> Path:
    model.save_pretrained(folder, **how)
    return folder
