"""A block of Qwen-Image, by itself or as one of the transformer's; see :mod:`refsim.blocks.double`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from refsim.blocks.double import DoubleStreamBlock
from refsim.files.checkpoint import Weights
from refsim.models.qwenimage.config import QwenImageConfig
from refsim.models.qwenimage.embeddings import sequences_of
from refsim.runtime.device import Device


def build_block(weights: Weights, device: Device, config: QwenImageConfig, index: int) -> DoubleStreamBlock:
    """Block ``index``."""
    return DoubleStreamBlock(weights, device, config.block(), f"transformer_blocks.{index}")


def bind_block(
    weights: Weights, device: Device, config: QwenImageConfig, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Block ``index`` for pictures of ``img_shapes`` and the prompt's ``encoder_hidden_states_mask``."""
    tokens = int(inputs["img_shapes"].prod(-1).sum())
    sequences = sequences_of(device, config, inputs["img_shapes"], tokens, inputs["encoder_hidden_states_mask"])
    return partial(build_block(weights, device, config, index), sequences=sequences)
