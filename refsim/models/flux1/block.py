"""The blocks of Flux.1: double-stream ones, then single-stream ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from refsim.blocks.double import DoubleStreamBlock
from refsim.blocks.single import SingleStreamBlock
from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxBlocks, FluxConfig
from refsim.models.flux1.embeddings import sequences_of
from refsim.runtime.device import Device


def bind_block(
    weights: Weights, device: Device, config: FluxConfig, index: int, inputs: dict[str, Tensor]
) -> Callable[..., Any]:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(device, config, inputs["img_ids"], inputs["txt_ids"])
    return partial(build_block(weights, device, config, index), sequences=sequences)


def build_block(
    weights: Weights, device: Device, config: FluxBlocks, index: int
) -> DoubleStreamBlock | SingleStreamBlock:
    """Block ``index`` in the order they run."""
    name = config.block_name(index)
    if index < config.num_layers:
        return DoubleStreamBlock(weights, device, config.double_block(), name)
    return SingleStreamBlock(weights, device, config.single_block(), name)
