"""A model's blocks in the order they run, and its last layers; counterpart of ``refsim.blocks.stack``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import ttnn

from refsim.blocks.config import BlocksConfig
from refsim.blocks.shape import SingleStreamShape
from refsim.files.checkpoint import Weights
from tt_impl.blocks.double import DoubleStreamBlock
from tt_impl.blocks.parts import Time
from tt_impl.blocks.sequences import Sequences
from tt_impl.blocks.single import SingleStreamBlock
from tt_impl.layers.modulation import ModulatedOutput
from tt_impl.parallel.context import Context

Block = DoubleStreamBlock | SingleStreamBlock
BoundBlock: TypeAlias = Callable[..., Any]
"""A block that knows its sequences: a function of both streams and the time step."""


def build_block(weights: Weights, ctx: Context, config: BlocksConfig, index: int) -> Block:
    """Make block ``index`` in the order they run."""
    shape = config.block(index)
    name = config.block_name(index)
    if isinstance(shape, SingleStreamShape):
        return SingleStreamBlock(weights, ctx, shape, name)
    return DoubleStreamBlock(weights, ctx, shape, name)


def bind(weights: Weights, ctx: Context, config: BlocksConfig, index: int, sequences: Sequences) -> BoundBlock:
    """Make block ``index`` for streams of these ``sequences``."""
    return partial(build_block(weights, ctx, config, index), sequences=sequences)


class BlockStack:
    """All blocks, then ``norm_out`` and ``proj_out``.

    Args:
        eps: of the last norm.
        bias: the last linears have one.
    """

    def __init__(
        self, weights: Weights, ctx: Context, config: BlocksConfig, *, eps: float = 1e-6, bias: bool = True
    ) -> None:
        self._blocks = [build_block(weights, ctx, config, i) for i in range(config.block_count)]
        out = config.patch_size**2 * config.out_channels
        self._out = ModulatedOutput(weights, ctx, features=config.features, out_features=out, eps=eps, bias=bias)

    def __call__(
        self,
        spatial: ttnn.Tensor,
        prompt: ttnn.Tensor,
        time: Time,
        sequences: Sequences,
        *,
        last: ttnn.Tensor | None = None,
    ) -> ttnn.Tensor:
        """Map (B, 1, local N, local D) and (B, 1, local L, local D) to (B, 1, local N, patch features).

        Args:
            time: what blocks are modulated by, see :data:`tt_impl.blocks.parts.Time`.
            last: the time step's vector (B, 1, 1, D), where ``time`` is not it.
        """
        for block in self._blocks:
            spatial, prompt = block(spatial, prompt, time, sequences=sequences)
        return self._out(spatial, time if last is None else last)


def holder_of_blocks(model: Any) -> Any:
    """Return what has a model's blocks in ``_blocks``: its stack, or the model itself."""
    blocks = getattr(model, "_blocks", None)
    return blocks if isinstance(blocks, BlockStack) else model
