"""Faults of the reference in FLUX.2: shared modulation, packed projections, positions of four axes, guidance."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from parity.cases import Case, Layout, ModelShape, make_case
from parity.faults.around import Patch, at, instead
from parity.faults.registry import fault
from refsim.models.flux2 import transformer
from refsim.parallel.tensor import shard_range


def _model(mesh: str, parallel: str) -> Case:
    return make_case("transformer", "flux2_tiny", Layout(mesh, parallel), ModelShape((12, 20), 29, 1))


SERIAL = _model("n150", "sp1")
TP2 = _model("n300", "tp2")  # 3 heads on 2 devices, 120 features of an MLP in 128 lanes
SP2 = _model("n300", "sp2")

order = partial(fault, "order", case=SERIAL)
weights = partial(fault, "weights", case=TP2)
tables = partial(fault, "tables", case=SERIAL)
affine = partial(fault, "affine", case=SERIAL)


@order("Feed-forwards gate by their second half.", "SwiGLU with up before gate, as the MLPs of language models pack it")
@at("refsim.layers.feedforward:activated")
def flux2_gate_and_up_swapped(original: Any, parts: Any, activation: str) -> Any:
    return original(parts[::-1], activation)


@weights("Packed projections are cut as one weight, not part by part.", "a column-parallel linear that knows no parts")
@at("refsim.layers.linear:PackedColumns.__init__")
def flux2_packed_cut_as_one(original: Any, self: Any, weights: Any, device: Any, name: str, **more: Any) -> None:
    original(self, weights, device, name, **more)
    tp = device.groups["tp"]
    sizes = [len(x) for x in self.weights]
    shape = (sum(size for size, _ in more["parts"]), more["in_features"])
    rows = shard_range(sum(sizes) * tp.size, tp)
    self.weights = list(weights.take(f"{name}.weight", shape, rows, (0, self.weights[0].shape[1])).split(sizes))


@weights("The linear out of single blocks is cut as one range.", "row-parallel without its two parts, heads and MLP")
@at("refsim.blocks.single:AttentionAndMLPOut.__init__")
def flux2_out_cut_as_one(original: Any, self: Any, weights: Any, device: Any, name: str, shape: Any) -> None:
    original(self, weights, device, name, shape)
    tp = device.groups["tp"]
    rows, lanes = self.weight.shape
    whole = (shape.features, shape.num_heads * shape.head_dim + shape.hidden)
    self.weight = weights.take(f"{name}.weight", whole, (0, rows), shard_range(lanes * tp.size, tp))


@order("The image is modulated by the prompt's chunks, and the prompt by the image's.", "two shared linears exchanged")
@at("refsim.models.flux2.block:Modulations.__call__")
def flux2_modulations_swapped(original: Any, self: Any, time: Tensor) -> Any:
    chunks = original(self, time)
    image, prompt, *_ = chunks
    return chunks | {image: chunks[prompt], prompt: chunks[image]}


@order("Single blocks are modulated by the image's chunks of double blocks.", "one modulation for all blocks")
@at("refsim.models.flux2.block:Modulations.__call__")
def flux2_single_modulated_as_double(original: Any, self: Any, time: Tensor) -> Any:
    chunks = original(self, time)
    image, _, single = chunks
    return chunks | {single: chunks[image][:3]}


@affine("Modulations are linears of the time step without its silu.", "silu taken for a part of the embedding")
def flux2_time_without_silu() -> Patch:
    return instead(transformer, "F", SimpleNamespace(silu=lambda x: x))


@affine("Time step and guidance are not multiplied by 1000.", "a pipeline's time steps taken for the scheduler's")
def flux2_time_in_0_to_1() -> Patch:
    return instead(transformer, "_TRAIN_TIMESTEPS", 1)


@affine("The guidance scale is left out.", "a model without guidance, as Klein")
@at("refsim.models.flux2.transformer:Flux2Transformer._conditioning")
def flux2_guidance_left_out(original: Any, self: Any, timestep: Tensor, guidance: Any, like: Tensor) -> Tensor:
    with instead(self, "_numbers", self._numbers[:1]):
        return original(self, timestep, None, like)


@tables("The prompt's tokens all stand at position 0.", "Flux.1, whose prompt has no positions")
@at("refsim.models.flux2.transformer:sequences_of")
def flux2_prompt_without_positions(original: Any, device: Any, config: Any, image: Tensor, prompt: Tensor) -> Any:
    return original(device, config, image, torch.zeros_like(prompt))


@tables("Frequencies are powers of 10000.", "theta of Flux.1")
@at("refsim.models.flux1.embeddings:rotary_angles")
def flux2_theta_of_flux1(original: Any, positions: Any, features: Any, theta: float) -> Tensor:
    return original(positions, features)


@tables("The last axis turns the first features of a head.", "axes dealt from the end")
@at("refsim.models.flux1.embeddings:rotary_angles")
def flux2_axes_from_the_end(original: Any, positions: Any, features: Any, theta: float) -> Tensor:
    return original(positions[::-1], features, theta)


@tables("Every shard turns its tokens by the first one's positions.", "positions of the local row", case=SP2)
@at("refsim.parallel.sequence:TokenShards.cut", within="refsim.blocks.sequences:Sequences.turned")
def flux2_positions_of_the_first_shard(original: Any, self: Any, ids: Tensor, shard: int, *, dim: int) -> Tensor:
    return original(self, ids, 0, dim=dim)
