"""Wan's transformer: its rotary tables are made at construction, time steps may be the tokens', an image an input."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import BlockShape, ModelShape
from parity.cases.inputs import generator, model_inputs, rounded
from parity.cases.oracles.base import STACK, Oracle

_PER_TOKEN = 48
"""Channels of TI2V-5B, whose pipeline gives every token a time step of its own."""
_IMAGE_TOKENS = 21


class WanOracle(Oracle):
    """``WanTransformer3DModel``, text to video and image to video."""

    class_names = ("WanTransformer3DModel",)
    text_to = "WanPipeline"
    other_than_class: ClassVar = {"wan22-ti2v-5b": (*STACK, "ffn_dim", "in_channels", "out_channels")}
    other_than_pipeline: ClassVar = {"wan22-t2v-a14b": ("steps",), "wan22-ti2v-5b": ("size", "experts")}
    exact = ("grid", "timestep")

    def inputs(self, config: dict[str, Any], shape: ModelShape, family: str, seed: int) -> dict[str, Tensor]:
        g = generator(seed, "image to video")
        channels = config["in_channels"]
        tensors = model_inputs(shape, config["text_dim"], None, family, seed, channels=channels)
        if channels == _PER_TOKEN:
            tokens = math.prod(shape.latent) // math.prod(config["patch_size"])
            tensors["timestep"] = tensors["timestep"][:, None] * torch.rand(shape.batch, tokens, generator=g)
        if config.get("image_dim") is not None:
            size = shape.batch, _IMAGE_TOKENS, config["image_dim"]
            tensors["encoder_hidden_states_image"] = torch.randn(size, generator=g)
        return tensors

    def restore(self, model: Any, config: dict[str, Any], dtype: torch.dtype) -> None:
        model.rope = type(model.rope)(config["attention_head_dim"], config["patch_size"], config["rope_max_seq_len"])

    def block_prefix(self, config: dict[str, Any], index: int) -> str:
        return f"blocks.{index}."

    def further_block_inputs(self, config: dict[str, Any], shape: BlockShape) -> dict[str, Tensor]:
        features = config["num_attention_heads"] * config["attention_head_dim"]
        chunks = torch.randn(shape.batch, 6, features, generator=generator(0, "modulation")) * 0.5
        return {"grid": torch.tensor(_grid(shape.n)), **rounded({"modulation": chunks}, "bf16")}

    def block_arguments(self, model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        size = (n * patch for n, patch in zip(inputs["grid"].tolist(), model.config.patch_size, strict=True))
        rotary = model.rope(torch.empty(1, 1, *size))
        return super().block_arguments(model, inputs) | {"temb": inputs["modulation"], "rotary_emb": rotary}


def _grid(tokens: int) -> tuple[int, int, int]:
    """Return frames, rows and columns of so many tokens, none of them 1 where that can be."""
    frames = _divisor(tokens, round(tokens ** (1 / 3)))
    rows = _divisor(tokens // frames, math.isqrt(tokens // frames))
    return frames, rows, tokens // frames // rows


def _divisor(number: int, most: int) -> int:
    return next(n for n in range(most, 0, -1) if number % n == 0)
