"""A tiny Wan of diffusers: three heads that divide by nothing, every path random."""

from __future__ import annotations

import torch

CONFIG = {
    "num_attention_heads": 3,
    "attention_head_dim": 20,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 24,
    "freq_dim": 32,
    "ffn_dim": 112,
    "num_layers": 2,
}


def randomise(model, seed: int = 0):
    """Weights that leave nothing inert (norm weights and biases too), activations of order 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "scale_shift_table" in name:
                p.normal_(0.0, 0.3, generator=generator)
            elif p.ndim == 1 or "gamma" in name:
                p.normal_(1.0 if "norm" in name and not name.endswith("bias") else 0.0, 0.2, generator=generator)
            else:
                p.normal_(0.0, 1.2 / p[0].numel() ** 0.5, generator=generator)
    return model.eval()


def make_model(seed: int = 0, **changes):
    from diffusers import WanTransformer3DModel

    return randomise(WanTransformer3DModel(**{**CONFIG, **changes}), seed)


def make_inputs(seed: int = 1, batch: int = 2, latent: tuple[int, int, int] = (3, 8, 12), text: int = 29) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden_states": torch.randn(batch, 16, *latent, generator=generator),
        "encoder_hidden_states": torch.randn(batch, text, CONFIG["text_dim"], generator=generator),
        "timestep": torch.tensor([937.5, 412.0])[:batch],
    }


def make_vae(seed: int = 5):
    """diffusers' Wan autoencoder of 8 channels; the last convolution small, so that few pixels are clamped."""
    from diffusers import AutoencoderKLWan

    vae = randomise(AutoencoderKLWan(base_dim=8), seed)
    with torch.no_grad():
        vae.decoder.conv_out.weight.mul_(0.3)
        vae.decoder.conv_out.bias.mul_(0.3)
    return vae
