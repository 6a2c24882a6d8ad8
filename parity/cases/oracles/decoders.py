"""Autoencoders are asked as most classes are; here is in what published ones are not their defaults."""

from __future__ import annotations

from typing import ClassVar

from parity.cases.oracles.base import Oracle

_IMAGE = ("down_block_types", "up_block_types", "block_out_channels", "layers_per_block")
_IMAGE += ("latent_channels", "scaling_factor", "use_quant_conv", "use_post_quant_conv")


class ImageDecoderOracle(Oracle):
    """``AutoencoderKL``."""

    class_names = ("AutoencoderKL",)
    other_than_class: ClassVar = {"sd35-vae": _IMAGE, "flux1-vae": _IMAGE}


class WanDecoderOracle(Oracle):
    """``AutoencoderKLWan``."""

    class_names = ("AutoencoderKLWan",)
    other_than_class: ClassVar = {"wan21-vae": ("latents_mean", "latents_std")}
