"""FLUX.2's blocks: the shared ones, modulated by chunks that all blocks of a kind share; counterpart of
``refsim.models.flux2.block``.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux2.config import Flux2Config
from tt_impl.blocks.stack import BoundBlock, bind
from tt_impl.layers.modulation import Modulation
from tt_impl.models.flux1.embeddings import sequences_of
from tt_impl.parallel.context import Context


class Modulations:
    """The linears of the time step that all blocks of a kind share."""

    def __init__(self, weights: Weights, ctx: Context, config: Flux2Config) -> None:
        sizes = {"features": config.features, "bias": False}
        self._linears = {
            m.name: Modulation(weights, ctx, f"{m.name}.linear", chunks=len(m.chunks), scales=m.scales, **sizes)
            for shape in (config.double_block(), config.single_block())
            for m in shape.modulations
        }

    def __call__(self, time_BD: ttnn.Tensor) -> dict[str, list[ttnn.Tensor]]:
        """Return the chunks of every linear by its name; ``time_BD`` with silu applied."""
        return {name: linear(time_BD) for name, linear in self._linears.items()}


def bind_block(
    weights: Weights, ctx: Context, config: Flux2Config, index: int, inputs: dict[str, torch.Tensor]
) -> BoundBlock:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(ctx, config, inputs["img_ids"], inputs["txt_ids"])
    modulations = Modulations(weights, ctx, config)
    block = bind(weights, ctx, config, index, sequences)
    return lambda spatial, prompt, time_BD: block(spatial, prompt, modulations(time_BD))
