"""A tiny image autoencoder of diffusers, as SD3.5 and Flux.1 have it."""

from __future__ import annotations

import torch


def make_vae(seed: int = 0, **changes):
    """AutoencoderKL with three stages, eight groups, every weight random."""
    from diffusers import AutoencoderKL

    sizes = {"block_out_channels": (16, 24, 32), "layers_per_block": 1, "latent_channels": 16, "norm_num_groups": 8}
    sizes |= {"down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3}
    sizes |= {"use_quant_conv": False, "use_post_quant_conv": False, "scaling_factor": 1.5305, "shift_factor": 0.0609}
    vae = AutoencoderKL(**{**sizes, **changes}).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in vae.named_parameters():
            norm = "norm" in name and name.endswith("weight")
            spread = 0.2 if norm or p.ndim == 1 else p[0].numel() ** -0.5
            p.normal_(1.0 if norm else 0.0, spread, generator=generator)
    return vae
