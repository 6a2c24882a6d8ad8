"""The blocks of Flux.1; counterpart of ``refsim.models.flux1.block``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxBlocks, FluxConfig
from tt_impl.blocks.double import DoubleStreamBlock
from tt_impl.blocks.single import SingleStreamBlock
from tt_impl.models.flux1.embeddings import sequences_of
from tt_impl.parallel.context import Context


def bind_block(
    weights: Weights, ctx: Context, config: FluxConfig, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(ctx, config, inputs["img_ids"], inputs["txt_ids"])
    return partial(build_block(weights, ctx, config, index), sequences=sequences)


def build_block(
    weights: Weights, ctx: Context, config: FluxBlocks, index: int
) -> DoubleStreamBlock | SingleStreamBlock:
    """Block ``index`` in the order they run."""
    name = config.block_name(index)
    if index < config.num_layers:
        return DoubleStreamBlock(weights, ctx, config.double_block(), name)
    return SingleStreamBlock(weights, ctx, config.single_block(), name)
