"""The blocks of SD3.5: double-stream ones, the last of which drops the prompt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from refsim.blocks.double import DoubleStreamBlock
from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.models.sd35.config import SD35Config
from refsim.runtime.device import Device


def build_block(weights: Weights, device: Device, config: SD35Config, index: int) -> DoubleStreamBlock:
    """Return ``transformer_blocks.{index}`` of diffusers' SD3Transformer2DModel."""
    return DoubleStreamBlock(weights, device, config.block(index), f"transformer_blocks.{index}")


def bind_block(
    weights: Weights, device: Device, config: SD35Config, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Return block ``index``, called with streams of as many tokens as ``inputs`` have."""
    sequences = Sequences.of(device, inputs["spatial"].shape[1], inputs["prompt"].shape[1])
    return partial(build_block(weights, device, config, index), sequences=sequences)
