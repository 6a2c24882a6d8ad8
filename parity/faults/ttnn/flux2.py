"""Faults of the device backend in FLUX.2: shared modulation, packed projections, positions of four axes, guidance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parity.cases import BlockShape, Case, Layout, ModelShape, make_case
from parity.faults.around import at, instead
from parity.faults.registry import fault


def _block(kind: str) -> Case:
    model = f"flux2_tiny64_{kind}_block"
    return make_case("ttnn_block", model, Layout("n300", "tp2"), BlockShape(75, 29), dtype="bf16")


DOUBLE = _block("double")
SINGLE = _block("single")  # 3 heads on 2 devices, 480 features of an MLP in 512 lanes
WHOLE = make_case("ttnn_transformer", "flux2_tiny64", Layout("n300", "tp2"), ModelShape((10, 14), 29, 1), dtype="bf16")

packed = partial(fault, "packed", case=SINGLE)
streams = partial(fault, "streams", case=DOUBLE)
positions = partial(fault, "positions", case=DOUBLE)
time = partial(fault, "time", case=WHOLE)


@packed("Feed-forwards gate by their second half.", "up before gate", case=DOUBLE)
@at("tt_impl.layers.feedforward:gated")
def flux2_gate_and_up_swapped(original: Callable, parts: Any, activation: str) -> Any:
    return original(parts[::-1], activation)


@packed("Gate and up of a feed-forward are cut as one weight.", "columns in the checkpoint's order", case=DOUBLE)
@at("tt_impl.layers.linear:put_packed")
def flux2_feed_forward_cut_as_one(_: Callable, ctx: Any, parts: Any, sizes: Any, width: int) -> Any:
    return _put_as_one(ctx, parts, sizes, width)


@packed("The packed projection of single blocks is cut as one weight.", "a column-parallel linear that knows no parts")
@at("tt_impl.blocks.single:put_packed")
def flux2_packed_cut_as_one(_: Callable, ctx: Any, parts: Any, sizes: Any, width: int) -> Any:
    return _put_as_one(ctx, parts, sizes, width)


def _put_as_one(ctx: Any, parts: Any, sizes: Any, width: int) -> Any:
    import torch

    from tt_impl.layers.linear import pad_to

    whole = torch.cat([pad_to(part, size, width) for part, size in zip(parts, sizes, strict=True)])
    return ctx.put_weight(whole.t()[None, None], tp_dim=3)


@packed("Single blocks put the MLP before the heads into the linear out.", "the two parts of in features exchanged")
@at("tt_impl.blocks.single:ttnn.concat", within="tt_impl.blocks.single:AttentionAndMLPOut.__call__")
def flux2_mlp_before_heads(original: Callable, tensors: Any, **more: Any) -> Any:
    return original(tensors[::-1], **more)


@packed("Queries and keys of single blocks change places.", "the order k, q, v of another packing")
@at("tt_impl.blocks.single:_Packed.__call__")
def flux2_packed_keys_first(original: Callable, self: Any, x: Any, rotary: Any) -> Any:
    (q, k, v), hidden = original(self, x, rotary)
    return (k, q, v), hidden


@streams("The image is modulated by the prompt's chunks, and the prompt by the image's.", "two linears exchanged")
@at("tt_impl.models.flux2.block:Modulations.__call__")
def flux2_modulations_swapped(original: Callable, self: Any, time: Any) -> Any:
    chunks = original(self, time)
    image, prompt, *_ = chunks
    return chunks | {image: chunks[prompt], prompt: chunks[image]}


@streams("Single blocks are modulated by the chunks of double blocks.", "one modulation for all blocks", case=SINGLE)
@at("tt_impl.models.flux2.block:Modulations.__call__")
def flux2_single_modulated_as_double(original: Callable, self: Any, time: Any) -> Any:
    chunks = original(self, time)
    image, _, single = chunks
    return chunks | {single: chunks[image][:3]}


@streams("A chunk that scales lacks its 1.", "without a bias there was nothing to add it to")
@at("tt_impl.models.flux2.block:Modulation")
def flux2_scale_without_1(original: Callable, *args: Any, scales: Any, **more: Any) -> Any:
    return original(*args, **more)


@positions("The prompt's tokens all stand at position 0.", "Flux.1, whose prompt has no positions")
@at("tt_impl.models.flux2.block:sequences_of")
def flux2_prompt_without_positions(original: Callable, ctx: Any, config: Any, image: Any, prompt: Any) -> Any:
    return original(ctx, config, image, prompt * 0)


@positions("Frequencies of positions are powers of 10000.", "theta of Flux.1")
@at("tt_impl.models.flux1.embeddings:rotary_angles")
def flux2_theta_of_flux1(original: Callable, positions: Any, features: Any, theta: float) -> Any:
    return original(positions, features)


@positions("The last axis of positions turns the first features of a head.", "axes dealt from the end", case=SINGLE)
@at("tt_impl.models.flux1.embeddings:rotary_angles")
def flux2_axes_from_the_end(original: Callable, positions: Any, features: Any, theta: float) -> Any:
    return original(positions[::-1], features, theta)


@time("The guidance scale is left out.", "a model without guidance, as Klein")
@at("tt_impl.models.flux2.transformer:Flux2Transformer._conditioning")
def flux2_guidance_left_out(original: Callable, self: Any, timestep: Any, guidance: Any) -> Any:
    with instead(self, "_numbers", self._numbers[:1]):
        return original(self, timestep, None)


@time("The time step's embedding is that of the guidance scale.", "the two numbers exchanged")
@at("tt_impl.models.flux2.transformer:Flux2Transformer._conditioning")
def flux2_time_and_guidance_swapped(original: Callable, self: Any, timestep: Any, guidance: Any) -> Any:
    return original(self, guidance, timestep)
