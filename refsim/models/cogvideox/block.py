"""The blocks of CogVideoX: double-stream ones whose streams, video and text, share every weight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from refsim.blocks.double import DoubleStreamBlock
from refsim.files.checkpoint import Weights
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.models.cogvideox.embeddings import sequences_of
from refsim.runtime.device import Device


def build_block(weights: Weights, device: Device, config: CogVideoXConfig, index: int) -> DoubleStreamBlock:
    """Return ``transformer_blocks.{index}`` of diffusers' CogVideoXTransformer3DModel."""
    return DoubleStreamBlock(weights, device, config.block(), f"transformer_blocks.{index}")


def bind_block(
    weights: Weights, device: Device, config: CogVideoXConfig, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Block ``index`` for the video whose patches ``grid`` (deep, high, wide) counts."""
    frames, rows, columns = inputs["grid"].tolist()
    sequences = sequences_of(device, config, (frames, rows, columns), inputs["prompt"].shape[1])
    return partial(build_block(weights, device, config, index), sequences=sequences)
