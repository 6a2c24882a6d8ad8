"""A block of Qwen-Image; counterpart of ``refsim.models.qwenimage.block``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.qwenimage.config import QwenImageConfig
from tt_impl.blocks.double import DoubleStreamBlock
from tt_impl.models.qwenimage.embeddings import sequences_of
from tt_impl.parallel.context import Context


def build_block(weights: Weights, ctx: Context, config: QwenImageConfig, index: int) -> DoubleStreamBlock:
    """Block ``index``."""
    return DoubleStreamBlock(weights, ctx, config.block(), f"transformer_blocks.{index}")


def bind_block(
    weights: Weights, ctx: Context, config: QwenImageConfig, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index`` for pictures of ``img_shapes`` and a prompt of which all tokens are there."""
    block = build_block(weights, ctx, config, index)
    tokens = int(inputs["img_shapes"].prod(-1).sum())
    prompt_L = torch.arange(inputs["encoder_hidden_states_mask"].shape[1])
    sequences = sequences_of(ctx, config, inputs["img_shapes"], tokens, prompt_L)

    def run(spatial: ttnn.Tensor, prompt: ttnn.Tensor, time: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
        return block(spatial, prompt, time, sequences=sequences)

    return run
