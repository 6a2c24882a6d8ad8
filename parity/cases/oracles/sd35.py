"""Stable Diffusion 3's transformer takes what most do; its pipeline's prompt is CLIP's rows with T5's behind them."""

from __future__ import annotations

from typing import ClassVar

from parity.cases.oracles.base import STACK, Oracle

_LARGER = (*STACK, "caption_projection_dim", "pos_embed_max_size")


class SD3Oracle(Oracle):
    """``SD3Transformer2DModel``, 3 and 3.5."""

    class_names = ("SD3Transformer2DModel",)
    text_to = "StableDiffusion3Pipeline"
    clip_in_rows = True
    longest_prompt = 512
    other_than_class: ClassVar = {"sd35-medium": (*_LARGER, "dual_attention_layers"), "sd35-large": _LARGER}
    other_than_pipeline: ClassVar = {"sd35-medium": ("steps",), "sd35-large": ("steps",)}
