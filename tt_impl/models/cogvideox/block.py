"""The blocks of CogVideoX; counterpart of ``refsim.models.cogvideox.block``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from refsim.files.checkpoint import Weights
from refsim.models.cogvideox.config import CogVideoXConfig
from tt_impl.blocks.double import DoubleStreamBlock
from tt_impl.models.cogvideox.embeddings import sequences_of
from tt_impl.parallel.context import Context


def build_block(weights: Weights, ctx: Context, config: CogVideoXConfig, index: int) -> DoubleStreamBlock:
    """``transformer_blocks.{index}`` of diffusers' CogVideoXTransformer3DModel."""
    return DoubleStreamBlock(weights, ctx, config.block(), f"transformer_blocks.{index}")


def bind_block(
    weights: Weights, ctx: Context, config: CogVideoXConfig, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index`` for the video whose patches ``grid`` (deep, high, wide) counts."""
    frames, rows, columns = inputs["grid"].tolist()
    sequences = sequences_of(ctx, config, (frames, rows, columns), inputs["prompt"].shape[1])
    return partial(build_block(weights, ctx, config, index), sequences=sequences)
