"""Published models as cases: their names, which of them a library can judge, and in what they are not its default."""

from __future__ import annotations

from refsim.models.registry import own
from refsim.models.spec import ModelSpec, Published

NO_LIBRARY = ("dflash", "motif")
"""Specs whose class neither diffusers nor transformers has."""

_STACK = ("num_layers", "num_attention_heads")
_VAE = ("down_block_types", "up_block_types", "block_out_channels", "layers_per_block")
_VAE += ("latent_channels", "scaling_factor", "use_quant_conv", "use_post_quant_conv")
_CLIP = ("hidden_size", "intermediate_size", "projection_dim", "num_attention_heads")
_T5 = ("d_model", "d_ff", "num_layers", "num_heads")
OTHER_THAN_CLASS: dict[str, tuple[str, ...]] = {
    "sd35-medium": (*_STACK, "caption_projection_dim", "pos_embed_max_size", "dual_attention_layers"),
    "sd35-large": (*_STACK, "caption_projection_dim", "pos_embed_max_size"),
    "wan22-ti2v-5b": (*_STACK, "ffn_dim", "in_channels", "out_channels"),
    "cogvideox-5b": (*_STACK, "use_rotary_positional_embeddings"),
    "flux1-dev": ("guidance_embeds",),
    "sd35-vae": _VAE,
    "flux1-vae": _VAE,
    "wan21-vae": ("latents_mean", "latents_std"),
    "clip-l": _CLIP,
    "clip-g": (*_CLIP, "num_hidden_layers", "hidden_act"),
    "t5-xxl": (*_T5, "feed_forward_proj"),
    "umt5-xxl": (*_T5, "vocab_size"),
    "qwen3-30b-a3b": ("num_hidden_layers", "norm_topk_prob", "rope_theta"),
}
"""Keys of config.json whose value is not the default of the library's class; every other one has the default."""

OTHER_THAN_PIPELINE: dict[str, tuple[str, ...]] = {
    "sd35-medium": ("steps",),
    "sd35-large": ("steps",),
    "wan22-t2v-a14b": ("steps",),
    "wan22-ti2v-5b": ("size", "experts"),
    "flux1-schnell": ("steps",),
    "mochi-1": ("steps", "size"),
}
"""What of a model's request its cards or tt_dit's pipeline say otherwise than diffusers' pipeline: the default number
of steps, the size of picture, which then is not among those that predictions know, and how many transformers it has."""


def name_of(published: Published) -> str:
    """What the case of a published model is called, such as ``published_sd35_large``."""
    return "published_" + published.name.replace("-", "_").replace(".", "_")


def published_models() -> dict[str, tuple[ModelSpec, Published]]:
    """Spec and configuration of every published model of refsim's own that a library has, by the name of its case."""
    return {
        name_of(published): (spec, published)
        for spec in own()
        if spec.name not in NO_LIBRARY
        for published in spec.published
    }
