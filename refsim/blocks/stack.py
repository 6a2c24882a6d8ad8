"""A model's blocks in the order they run, and its last layers; or one of the blocks by itself.

    spatial --+--> block 0 --> block 1 --> ... --> norm, proj --all_gather over sp-->
    prompt  --'

What each block is made of, and how its weights are called, is said by the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from refsim.blocks.config import BlocksConfig
from refsim.blocks.double import DoubleStreamBlock
from refsim.blocks.parts import Time
from refsim.blocks.sequences import Sequences
from refsim.blocks.shape import SingleStreamShape
from refsim.blocks.single import SingleStreamBlock
from refsim.files.checkpoint import Weights
from refsim.layers.modulation import ModulatedOutput
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

Block = DoubleStreamBlock | SingleStreamBlock
BoundBlock: TypeAlias = Callable[..., Any]
"""A block that knows its sequences: a function of both streams and the time step."""


def build_block(weights: Weights, device: Device, config: BlocksConfig, index: int) -> Block:
    """Make block ``index`` in the order they run."""
    shape = config.block(index)
    name = config.block_name(index)
    if isinstance(shape, SingleStreamShape):
        return SingleStreamBlock(weights, device, shape, name)
    return DoubleStreamBlock(weights, device, shape, name)


def bind(weights: Weights, device: Device, config: BlocksConfig, index: int, sequences: Sequences) -> BoundBlock:
    """Make block ``index`` for streams of these ``sequences``."""
    return partial(build_block(weights, device, config, index), sequences=sequences)


class BlockStack:
    """All blocks, then ``norm_out`` and ``proj_out``.

    Args:
        eps: of the last norm.
        bias: the last linears have one.
    """

    def __init__(
        self, weights: Weights, device: Device, config: BlocksConfig, *, eps: float = 1e-6, bias: bool = True
    ) -> None:
        self._device = device
        self._config = config
        self._blocks = [build_block(weights, device, config, i) for i in range(config.block_count)]
        out = config.patch_size**2 * config.out_channels
        self._out = ModulatedOutput(weights, device, features=config.features, out_features=out, eps=eps, bias=bias)

    def __call__(
        self, spatial: MeshTensor, prompt: MeshTensor, time: Time, sequences: Sequences, *, last: Tensor | None = None
    ) -> Tensor:
        """Map (B, local N, local D) and (B, local L, local D) to (B, N, patch features) on every device.

        Args:
            time: what blocks are modulated by, see :data:`refsim.blocks.parts.Time`.
            last: the time step's vector (B, D), where ``time`` is not it.
        """
        for index, block in enumerate(self._blocks):
            self._device.stage(block=index)
            before = spatial, prompt
            spatial, prompt = block(spatial, prompt, time, sequences=sequences)
            self._observe(index, before, (spatial, prompt))
        silu_time = time if last is None else last
        assert isinstance(silu_time, Tensor)
        return self._out(spatial, silu_time, sequences.tokens)

    def _observe(self, index: int, before: tuple[MeshTensor, ...], after: tuple[MeshTensor, ...]) -> None:
        """Observe what a block added to its streams, one by one where diffusers joins them."""
        name = self._config.block_name(index)
        shape = self._config.block(index)
        if isinstance(shape, SingleStreamShape) and shape.joined:
            for old, new in zip(before, after, strict=True):
                self._device.observe_added(name, (old,), (new,))
        else:
            self._device.observe_added(name, before, after)
