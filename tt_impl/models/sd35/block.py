"""The blocks of SD3.5; counterpart of ``refsim.models.sd35.block``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from refsim.files.checkpoint import Weights
from refsim.models.sd35.config import SD35Config
from tt_impl.blocks.double import DoubleStreamBlock
from tt_impl.blocks.sequences import Sequences
from tt_impl.parallel.context import Context


def build_block(weights: Weights, ctx: Context, config: SD35Config, index: int) -> DoubleStreamBlock:
    """``transformer_blocks.{index}`` of diffusers' SD3Transformer2DModel."""
    return DoubleStreamBlock(weights, ctx, config.block(index), f"transformer_blocks.{index}")


def bind_block(
    weights: Weights, ctx: Context, config: SD35Config, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index``, to be called with streams of as many tokens as ``inputs`` have."""
    sequences = Sequences.of(ctx, inputs["spatial"].shape[1], inputs["prompt"].shape[1])
    return partial(build_block(weights, ctx, config, index), sequences=sequences)
