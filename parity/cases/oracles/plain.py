"""Autoencoders and encoders that are asked as most classes are; in what published ones are not their defaults."""

from __future__ import annotations

from typing import ClassVar

from parity.cases.oracles.base import Oracle

_IMAGE = ("down_block_types", "up_block_types", "block_out_channels", "layers_per_block")
_IMAGE += ("latent_channels", "scaling_factor", "use_quant_conv", "use_post_quant_conv")
_T5 = ("d_model", "d_ff", "num_layers", "num_heads")


class PlainOracle(Oracle):
    """Decoders of pictures and of Wan's videos, T5's encoders and Qwen3's decoder of text."""

    class_names = (
        "AutoencoderKL",
        "AutoencoderKLWan",
        "AutoencoderKLMochi",
        "AutoencoderKLQwenImage",
        "AutoencoderKLFlux2",
    )
    class_names += ("T5EncoderModel", "UMT5EncoderModel", "Qwen3MoeForCausalLM")
    other_than_class: ClassVar = {
        **{"sd35-vae": _IMAGE, "flux1-vae": _IMAGE, "wan21-vae": ("latents_mean", "latents_std")},
        **{"t5-xxl": (*_T5, "feed_forward_proj"), "umt5-xxl": (*_T5, "vocab_size")},
        "qwen3-30b-a3b": ("num_hidden_layers", "norm_topk_prob", "rope_theta"),
    }
