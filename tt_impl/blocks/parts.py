"""What both kinds of block are built of; counterpart of ``refsim.blocks.parts``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import ttnn

from refsim.blocks.shape import BlockShape, Chunks
from refsim.files.checkpoint import Weights
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.attention import HeadNorm
from tt_impl.layers.modulation import Modulation
from tt_impl.layers.norm import DistributedLayerNorm, DistributedStreamRMSNorm, HeadLayerNorm, RMSNorm
from tt_impl.parallel.context import Context

Time: TypeAlias = ttnn.Tensor | Mapping[str, Sequence[ttnn.Tensor]]
"""The time step's vector (B, 1, 1, D) with silu applied; where blocks share modulations, the chunks of each
by its name."""


def stream_norm(
    weights: Weights, ctx: Context, name: str, shape: BlockShape, features: int
) -> DistributedLayerNorm | DistributedStreamRMSNorm:
    """Make a norm of a stream, whose ``features`` are cut over tp."""
    if shape.norm == "rms":
        return DistributedStreamRMSNorm(ctx, features=features, eps=shape.eps)
    affine = (weights, name) if shape.norm == "layer_affine" else None
    return DistributedLayerNorm(ctx, features=features, eps=shape.eps, affine=affine)


def head_norm(shape: BlockShape) -> Callable[..., HeadNorm]:
    """Return what makes a norm of queries or keys, see :class:`tt_impl.layers.attention.StreamQKV`."""
    return partial(RMSNorm if shape.qk_norm == "rms" else HeadLayerNorm, eps=shape.qk_eps)


class Modulations:
    """The linears of a block that make chunks of the time step, none where all blocks share them.

    A chunk that scales comes out as 1 + scale, see :class:`tt_impl.layers.modulation.Modulation`.
    """

    def __init__(self, weights: Weights, ctx: Context, prefix: str, shape: BlockShape) -> None:
        self._shape = shape
        self._linears: list[Modulation] = []
        if not shape.shared_modulation:
            self._linears = [
                Modulation(
                    weights,
                    ctx,
                    f"{prefix}.{each.name}",
                    features=each.features,
                    chunks=len(each.chunks),
                    in_features=shape.time_features,
                    scales=each.scales,
                )
                for each in shape.modulations
            ]

    def __call__(self, time: Time, sequences: Sequences) -> Chunks[ttnn.Tensor]:
        """Return the chunks of a call, each (B, 1, 1 or local N, local D), made when they are needed."""
        if not isinstance(time, ttnn.Tensor):
            return Chunks([(each.chunks, partial(list, time[each.name])) for each in self._shape.modulations])
        linears = zip((each.chunks for each in self._shape.modulations), self._linears, strict=True)
        return Chunks([(chunks, partial(self._made, chunks, linear, time, sequences)) for chunks, linear in linears])

    def _made(
        self, names: tuple[str, ...], linear: Modulation, time: ttnn.Tensor, sequences: Sequences
    ) -> list[ttnn.Tensor]:
        index = sequences.modulate_index
        if index is None:
            return linear(time)
        samples = time.shape[0] // 2
        if names[0].startswith("prompt."):
            return linear(time[:samples])
        return [ttnn.where(index, chunk[samples:], chunk[:samples]) for chunk in linear(time)]
