"""FLUX.2's blocks: the shared ones, modulated by chunks that all blocks of a kind share; counterpart of
``refsim.models.flux2.block``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux2.config import Flux2Config
from tt_impl.layers.modulation import Modulation
from tt_impl.models.flux1.block import build_block
from tt_impl.models.flux1.embeddings import sequences_of
from tt_impl.parallel.context import Context

Chunks = list[list[ttnn.Tensor]]
"""Of each modulation of a kind of block, in their order; those that scale are 1 + scale."""


class Modulations:
    """The linears of the time step that all blocks of a kind share."""

    def __init__(self, weights: Weights, ctx: Context, config: Flux2Config) -> None:
        def linear(name: str, chunks: int, scales: tuple[int, ...]) -> Modulation:
            sizes = {"features": config.features, "chunks": chunks, "scales": scales}
            return Modulation(weights, ctx, f"{name}.linear", bias=False, **sizes)

        self._double, self._single = (
            [linear(m.name, len(m.chunks), m.scales) for m in shape.modulations]
            for shape in (config.double_block(), config.single_block())
        )

    def double(self, time_BD: ttnn.Tensor) -> Chunks:
        """Return the chunks of the image and of the prompt in double blocks; ``time_BD`` with silu applied."""
        return [modulation(time_BD) for modulation in self._double]

    def single(self, time_BD: ttnn.Tensor) -> Chunks:
        """Return the chunks of both streams in single blocks."""
        return [modulation(time_BD) for modulation in self._single]


def bind_block(
    weights: Weights, ctx: Context, config: Flux2Config, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(ctx, config, inputs["img_ids"], inputs["txt_ids"])
    modulations = Modulations(weights, ctx, config)
    modulation = modulations.double if index < config.num_layers else modulations.single
    block = partial(build_block(weights, ctx, config, index), sequences=sequences)
    return lambda spatial, prompt, time_BD: block(spatial, prompt, modulation(time_BD))
