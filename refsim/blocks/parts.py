"""What both kinds of block are built of: norms of a stream and of heads, and the chunks of their modulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from refsim.blocks.sequences import Sequences
from refsim.blocks.shape import BlockShape, Chunks
from refsim.files.checkpoint import Weights
from refsim.layers.attention import HeadNorm
from refsim.layers.modulation import Modulation
from refsim.layers.norm import DistributedLayerNorm, DistributedStreamRMSNorm, HeadLayerNorm, RMSNorm
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, shards

Norm = Callable[[MeshTensor], MeshTensor]
Time: TypeAlias = Tensor | Mapping[str, Sequence[MeshTensor]]
"""The time step's vector with silu applied, (B, D), on every device, or of two time steps between which image tokens
choose, (B, 2, D), the prompt's first; where blocks share modulations, the chunks of each by its name."""


def stream_norm(weights: Weights, device: Device, name: str, shape: BlockShape, features: int) -> Norm:
    """Make a norm of a stream, whose ``features`` are cut over tp; the result is observed under ``name``."""
    if shape.norm == "rms":
        return DistributedStreamRMSNorm(device, features=features, eps=shape.eps, name=name)
    affine = (weights, name) if shape.norm == "layer_affine" else None
    return DistributedLayerNorm(device, features=features, eps=shape.eps, affine=affine, name=name)


def head_norm(shape: BlockShape) -> Callable[..., HeadNorm]:
    """Return what makes a norm of queries or keys, see :class:`refsim.layers.attention.StreamQKV`."""
    return partial(RMSNorm if shape.qk_norm == "rms" else HeadLayerNorm, eps=shape.qk_eps)


class Modulations:
    """The linears of a block that make chunks of the time step, none where all blocks share them."""

    def __init__(self, weights: Weights, device: Device, prefix: str, shape: BlockShape) -> None:
        self._device = device
        self._shape = shape
        self._linears: list[Modulation] = []
        if not shape.shared_modulation:
            self._linears = [
                Modulation(
                    weights,
                    device,
                    f"{prefix}.{each.name}",
                    features=each.features,
                    chunks=len(each.chunks),
                    in_features=shape.time_features,
                )
                for each in shape.modulations
            ]

    def __call__(self, time: Time, sequences: Sequences) -> Chunks[MeshTensor]:
        """Return the chunks of a call, each (B, 1 or local N, local D), made when they are needed."""
        if not isinstance(time, Tensor):
            return Chunks([(each.chunks, partial(list, time[each.name])) for each in self._shape.modulations])
        linears = zip((each.chunks for each in self._shape.modulations), self._linears, strict=True)
        return Chunks([(chunks, partial(self._made, chunks, linear, time, sequences)) for chunks, linear in linears])

    def _made(
        self, names: tuple[str, ...], linear: Modulation, time_BD: Tensor, sequences: Sequences
    ) -> list[MeshTensor]:
        index = sequences.modulate_index
        if index is None:
            return linear(time_BD)
        if names[0].startswith("prompt."):
            return linear(time_BD[:, 0])
        return [self._picked(chunk, index) for chunk in linear(time_BD)]

    def _picked(self, chunk: MeshTensor, index_1N: Tensor) -> MeshTensor:
        """Pick for every image token the chunk of its time step, of (B, 2, local D)."""
        first, second = chunk.local.split(1, 1)
        picked = torch.where(index_1N.unsqueeze(-1) == 0, first, second)
        return chunk.with_local(picked, **shards(self._device.groups, sp=1))
