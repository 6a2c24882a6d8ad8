"""Faults of the device backend in Mochi: learned rotations, gates, norms, valid tokens of a prompt; and its decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from parity.cases import BlockShape, Case, Layout, ModelShape, make_case
from parity.faults.around import Patch, at
from parity.faults.registry import fault
from parity.faults.ttnn.device import ttnn


def _block(mesh: str, parallel: str) -> Case:
    return make_case("ttnn_block", "mochi_tiny64_block", Layout(mesh, parallel), BlockShape(90, 45), dtype="bf16")


BLOCK = _block("bh-qb", "sp2_tp2")
HOLES = make_case(
    "ttnn_transformer", "mochi_tiny64", Layout("n300", "tp2"), ModelShape((3, 6, 10), 29, 2), dtype="bf16"
)  # the second sample's prompt has holes
FRAMES = make_case(
    "ttnn_vae_decoder", "mochi_vae_tiny", Layout("bh-qb", "sp2_tp2"), ModelShape((2, 5, 4), 0, 1), dtype="bf16"
)

rotation = partial(fault, "learned rotation", case=BLOCK)
block = partial(fault, "scale-only modulation", case=BLOCK)
prompt = partial(fault, "valid prompt tokens", case=HOLES)
frames = partial(fault, "frames", case=FRAMES)


@rotation("All of Mochi's heads turn as the first one does.", "tables of one head, which the op takes for all")
@at("tt_impl.models.mochi.embeddings:pair_rotary")
def mochi_one_rotation_for_all(original: Callable, ctx: Any, angles: torch.Tensor, **more: Any) -> Any:
    return original(ctx, angles[0], **more)


@rotation("Every device turns Mochi's heads as the first device's.", "tables of the heads replicated over tp")
@at("tt_impl.models.mochi.embeddings:pair_rotary")
def mochi_rotation_of_the_first_heads(original: Callable, ctx: Any, angles: torch.Tensor, **more: Any) -> Any:
    return original(ctx, angles[: len(angles) // ctx.tp].repeat(ctx.tp, 1, 1), **more)


@rotation("Mochi's places start anew on every device of sp.", "tables of the length of a shard, replicated")
@at("tt_impl.models.mochi.embeddings:pair_rotary")
def mochi_places_of_the_first_shard(original: Callable, ctx: Any, angles: torch.Tensor, **more: Any) -> Any:
    return original(ctx, angles[:, : angles.shape[1] // ctx.sp].repeat(1, ctx.sp, 1), **more)


@rotation("Rows and columns of Mochi's frames are counted from the corner.", "positions that are not centred")
@at("tt_impl.models.mochi.embeddings:positions")
def mochi_places_from_the_corner(original: Callable, grid: Any) -> torch.Tensor:
    places = original(grid)
    return places - places[0]


@block("Mochi's gates are not bounded.", "tanh of the gates left out, as other models have none")
@at("ttnn:tanh")
def mochi_gates_without_tanh(_: Callable, x: Any) -> Any:
    return x


@block("Mochi's results go into the stream without a norm.", "the second norm of a branch left out")
@at("tt_impl.blocks.double:_Stream.residual")
def mochi_results_not_normed(original: Callable, self: Any, *args: Any) -> Any:
    return replace(original(self, *args), norm=None)


@block("Mochi's norms take the mean square of a device's own features.", "an RMS norm of one device on a cut stream")
@at("tt_impl.layers.norm:gather_features", within="tt_impl.layers.norm:DistributedStreamRMSNorm._statistics")
def mochi_norm_of_own_features(_: Callable, ctx: Any, stats: Any) -> Any:
    return ttnn.concat([stats] * ctx.tp, dim=3)


@block("Mochi's norms divide by the padded width.", "a mean over the lanes that the devices have")
def mochi_norm_counts_padding() -> Patch:
    @at("tt_impl.layers.norm:DistributedStreamRMSNorm.__init__")
    def init(original: Callable, self: Any, *args: Any, **sizes: Any) -> None:
        original(self, *args, **sizes)
        self._correction = 1

    return init()


@block("Mochi's streams are multiplied by scale instead of 1 + scale.", "the 1 of adaptive norms left out")
@at("tt_impl.layers.modulation:Modulation.__init__")
def mochi_scale_without_one(original: Callable, self: Any, *args: Any, scales: Any, **sizes: Any) -> None:
    original(self, *args, scales=(), **sizes)


@block("Attention's gate and the feed-forward's scale change places in Mochi.", "two scales, then two gates")
@at("tt_impl.layers.modulation:Modulation.__call__")
def mochi_chunks_scale_scale_gate_gate(original: Callable, self: Any, time: Any) -> Any:
    made = original(self, time)
    return [made[i] for i in (0, 2, 1, 3)] if len(made) == 4 else made


@block("Mochi's feed-forwards gate by their second half's values.", "SwiGLU with gate before up, as FLUX.2 packs it")
@at("tt_impl.layers.feedforward:gated")
def mochi_gate_and_up_swapped(original: Callable, parts: Any, activation: str) -> Any:
    return original(parts[::-1], activation)


@prompt("Padding of Mochi's prompts counts as keys.", "prompts not cut to their valid tokens")
@at("tt_impl.parallel.sequence:valid_prompts")
def mochi_padding_attended(original: Callable, mask: torch.Tensor, **more: Any) -> Any:
    return original(torch.ones_like(mask), **more)


@prompt("All of Mochi's samples have the valid tokens of the first.", "one length for a batch")
@at("tt_impl.parallel.sequence:valid_prompts")
def mochi_valid_as_in_the_first(original: Callable, mask: torch.Tensor, **more: Any) -> Any:
    return original(mask[:1].expand_as(mask), **more)


@prompt("Answers of Mochi's prompt with holes stay where they are.", "what Genmo's code does, and diffusers' does not")
@at("tt_impl.models.mochi.transformer:sequences_of")
def mochi_answers_not_moved(original: Callable, *args: Any) -> Any:
    return replace(original(*args), prompt_answers=None)


@prompt(
    "Keys and values of Mochi's pooling of the prompt change places.", "the two halves of to_kv read in the other order"
)
@at("tt_impl.models.mochi.embeddings:local_attention")
def mochi_pool_keys_as_values(original: Callable, ctx: Any, qkv: Any, **more: Any) -> Any:
    q, k, v = qkv
    return original(ctx, (q, v, k), **more)


@frames("Zeros lie around Mochi's frames.", "the border of other decoders")
@at("tt_impl.layers.convolution:exchange_halo")
def mochi_zeros_around(original: Callable, *args: Any, by: int, **_: Any) -> Any:
    return original(*args, by=by)


@frames("The edge that Mochi's decoder repeats is that of the padded picture.", "replicate on parts that are not full")
@at("tt_impl.parallel.halo:ImageShards.inside")
def mochi_edge_of_the_padding(original: Callable, self: Any, ctx: Any, *more: Any) -> Any:
    height, width = self.padded(ctx)
    return original(replace(self, height=height, width=width, _cache={}), ctx, *more)


@frames("Mochi's frames are normed together.", "group norm of a video, as CogVideoX has it")
@at("tt_impl.models.vae_mochi.decoder:FrameNorm.__call__")
def mochi_frames_normed_together(_: Callable, self: Any, x: Any, shards: Any) -> Any:
    return self._norm(x, shards, silu=True)
