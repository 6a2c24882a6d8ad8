"""FLUX.2's blocks: the shared ones of :mod:`refsim.blocks`, modulated by chunks that all blocks of a kind share.

time step --linear--> chunks of the image   --.
          --linear--> chunks of the prompt  --+--> every double block
          --linear--> chunks of both streams ----> every single block
"""

from __future__ import annotations

from torch import Tensor

from refsim.blocks.stack import BoundBlock, bind
from refsim.files.checkpoint import Weights
from refsim.layers.modulation import Modulation
from refsim.models.flux1.embeddings import sequences_of
from refsim.models.flux2.config import Flux2Config
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor


class Modulations:
    """The linears of the time step that all blocks of a kind share."""

    def __init__(self, weights: Weights, device: Device, config: Flux2Config) -> None:
        sizes = {"features": config.features, "bias": False}
        self._linears = {
            m.name: Modulation(weights, device, f"{m.name}.linear", chunks=len(m.chunks), **sizes)
            for shape in (config.double_block(), config.single_block())
            for m in shape.modulations
        }

    def __call__(self, time_BD: Tensor) -> dict[str, list[MeshTensor]]:
        """Return the chunks of every linear by its name; ``time_BD`` with silu applied."""
        return {name: linear(time_BD) for name, linear in self._linears.items()}


def bind_block(
    weights: Weights, device: Device, config: Flux2Config, index: int, inputs: dict[str, Tensor]
) -> BoundBlock:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(device, config, inputs["img_ids"], inputs["txt_ids"])
    modulations = Modulations(weights, device, config)
    block = bind(weights, device, config, index, sequences)
    return lambda spatial, prompt, time_BD: block(spatial, prompt, modulations(time_BD))
