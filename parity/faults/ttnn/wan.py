"""Faults of the device backend in Wan2.2: positions, norms over all heads, cross-attention, modulation, patches.

They run on one block of four heads of 64 features, or on the tiny transformer where the mistake lies around the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from parity.cases import BlockShape, Case, Layout, ModelShape, make_case
from parity.faults.around import Patch, around, at, together
from parity.faults.registry import fault
from parity.faults.ttnn.device import ttnn


def _block(mesh: str, parallel: str) -> Case:
    shape = BlockShape(75, 45)  # 3 x 5 x 5 patches, over two devices 64 and 11; a prompt of one tile and a half
    return make_case("ttnn_block", "wan22_tiny64_block", Layout(mesh, parallel), shape, dtype="bf16")


def _whole(model: str, mesh: str, parallel: str, batch: int = 1) -> Case:
    return make_case("ttnn_transformer", model, Layout(mesh, parallel), ModelShape((3, 8, 12), 29, batch), dtype="bf16")


SP2 = _block("n300", "sp2")
TP2 = _block("n300", "tp2")
SP2_TP2 = _block("bh-qb", "sp2_tp2")
WHOLE = _whole("wan22_tiny64", "n300", "tp2")
SAMPLES = _whole("wan22_tiny64", "n300", "sp2", batch=2)
UNEVEN = _whole("wan22_uneven64", "n300", "tp2")  # three heads on two devices


rotary = partial(fault, "video positions", case=SP2)
norms = partial(fault, "norms over heads", case=SP2_TP2)
cross = partial(fault, "cross-attention", case=TP2)
modulation = partial(fault, "modulation", case=TP2)
outside = partial(fault, "around the blocks", case=WHOLE)


@rotary("Rows and columns of the video change places in RoPE.", "positions listed as (t, x, y), latents as HW")
@at("tt_impl.models.wan22.embeddings:token_positions")
def wan_rows_and_columns_swapped(original: Callable, *where: Any) -> Any:
    frames, rows, columns = original(*where)
    return frames, columns, rows


@rotary(
    "The frames' share of a head stands last and is as wide as the rows'.",
    "44, 42, 42 features dealt out as 42, 42, 44",
)
@at("tt_impl.models.wan22.embeddings:rotary_angles")
def wan_share_of_frames_last(original: Callable, positions: Any, sizes: Any) -> Any:
    return original(positions, sizes[::-1])


@rotary(
    "RoPE starts anew at position 0 on every device of sp.", "tables made from the length of a shard and replicated"
)
@at("tt_impl.models.wan22.embeddings:pair_rotary")
def wan_positions_of_the_first_shard(original: Callable, ctx: Any, angles: torch.Tensor, **more: Any) -> Any:
    return original(ctx, angles[: len(angles) // ctx.sp].repeat(ctx.sp, 1), **more)


@rotary("Keys are not turned by their positions.", "rotary tables handed to the norm of the queries only")
def wan_keys_not_turned() -> Patch:
    from tt_impl.layers.norm import DistributedRMSNorm

    def init(original: Callable, self: Any, weights: Any, ctx: Any, name: str, **sizes: Any) -> None:
        original(self, weights, ctx, name, **sizes)
        self.of_keys = name.endswith("norm_k")

    def call(original: Callable, self: Any, x: Any, rotary: Any = None) -> Any:
        return original(self, x, None if self.of_keys else rotary)

    return together(around(DistributedRMSNorm, "__init__", init), around(DistributedRMSNorm, "__call__", call))


@rotary(
    "Padding counts as keys: logical_n is the padded number of tokens.",
    "logical_n of an attention without prompt read from the tensor's shape",
)
@at("tt_impl.models.wan22.attention:joint_attention")
def wan_logical_n_missing(original: Callable, ctx: Any, qkv: Any, prompt: Any, **_: Any) -> Any:
    return original(ctx, qkv, prompt, logical_n=qkv[0].shape[2] * ctx.sp)


def _own_statistics(heads: bool) -> Patch:
    """Give every device its own statistics for everyone's: of norms over heads, or of layer norms."""

    @at("tt_impl.layers.norm:gather_features")
    def gather(original: Callable, ctx: Any, stats: Any) -> Any:
        whole = original(ctx, stats)
        mine = (stats.dtype == ttnn.float32) == heads
        return ttnn.concat([stats] * ctx.tp, dim=3) if mine else whole

    return gather()


@norms(
    "Queries and keys are normalised over a device's own heads.", "an RMS norm of one device on features cut over tp"
)
def wan_norm_over_local_heads() -> Patch:
    return _own_statistics(heads=True)


@norms(
    "Layer norms take mean and variance of a device's own features.",
    "a layer norm of one device on a stream cut over tp",
)
def wan_mean_of_local_features() -> Patch:
    return _own_statistics(heads=False)


@norms("Queries and keys are normalised head by head.", "the norm of SD3.5 and Flux.1, whose weights fit", case=TP2)
@at("tt_impl.layers.norm:DistributedRMSNorm._finish")
def wan_norm_per_head(original: Callable, self: Any, x: Any, stats: Any, rotary: Any) -> Any:
    size = x.shape[3] // self._local_heads
    heads = [x[:, :, :, start : start + size] for start in range(0, x.shape[3], size)]
    normed = ttnn.concat([ttnn.rms_norm(head, epsilon=self._eps) for head in heads], dim=3)
    return original(self, normed, ttnn.full_like(stats, x.shape[3]), rotary)  # whose mean square is 1 already


@norms("The norm over all heads counts padded ones.", "a mean over the lanes that a device has", case=UNEVEN)
@at("tt_impl.layers.norm:DistributedRMSNorm.__init__")
def wan_norm_counts_padded_heads(original: Callable, self: Any, *args: Any, **sizes: Any) -> None:
    original(self, *args, **sizes)
    self._correction = 1.0


@cross(
    "A sample attends to the prompt of the other one.",
    "negative and positive prompt stacked in the other order than the latents",
    case=SAMPLES,
)
@at("tt_impl.models.wan22.attention:CrossAttention.__call__")
def wan_prompt_of_the_other_sample(original: Callable, self: Any, spatial: Any, prompt: Any, *image: Any) -> Any:
    return original(self, spatial, ttnn.concat([prompt[1:2], prompt[0:1]], dim=0))


@cross("The prompt's last tokens are no keys.", "prompt tokens rounded down to whole tiles where 45 are no tile")
@at("tt_impl.models.wan22.attention:CrossAttention.__call__")
def wan_prompt_cut_to_whole_tiles(original: Callable, self: Any, spatial: Any, prompt: Any, *image: Any) -> Any:
    return original(self, spatial, prompt[:, :, : prompt.shape[2] // 32 * 32], *image)


@cross("Keys and values of the prompt change places.", "the fused linear of both in the order V, K")
@at("tt_impl.layers.linear:ColParallelQKV._per_device")
def wan_prompt_values_as_keys(original: Callable, self: Any, x: Any) -> Any:
    return original(self, x.flip(0) if len(x) == 2 else x)


@cross(
    "The devices' heads of the prompt's values lie in the opposite order.",
    "shards of one fused weight reversed, which every shape allows",
)
@at("tt_impl.layers.linear:ColParallelQKV._per_device")
def wan_heads_of_values_reversed(original: Callable, self: Any, x: torch.Tensor) -> torch.Tensor:
    if len(x) == 2:
        values = x[1].unflatten(0, (self._ctx.tp, -1)).flip(0).flatten(0, 1)
        x = torch.stack([x[0], values])
    return original(self, x)


@cross(
    "Cross-attention adds a device's own partial sum.",
    "a row-parallel linear followed by a plain partition, whose shape is the same",
)
@at("tt_impl.layers.linear:reduce_scatter_features", within="tt_impl.models.wan22.attention:CrossAttention.__call__")
def wan_cross_attention_not_reduced(_: Callable, ctx: Any, x: Any) -> Any:
    return ttnn.mesh_partition(x, dim=3, cluster_axis=ctx.tp_axis)


@modulation("Shift and gate of the feed-forward change places.", "six chunks unpacked in another order")
@at("tt_impl.layers.modulation:ModulationTable.__call__")
def wan_shift_and_gate_swapped(original: Callable, self: Any, time: Any) -> list:
    *attention, shift, scale, gate = original(self, time)
    return [*attention, gate, scale, shift]


@modulation("The feed-forward takes self-attention's chunks.", "the first three of six chunks used twice")
@at("tt_impl.layers.modulation:ModulationTable.__call__")
def wan_chunks_used_twice(original: Callable, self: Any, time: Any) -> list:
    return original(self, time)[:3] * 2


@modulation("Streams are multiplied by scale instead of 1 + scale.", "the 1 of adaptive norms left out")
@at("tt_impl.layers.modulation:ModulationTable.__init__")
def wan_scale_without_one(original: Callable, self: Any, ctx: Any, table: torch.Tensor, *, scales: Any) -> None:
    original(self, ctx, table, scales=())


@modulation("The norm before cross-attention has no weight and no bias.", "norm2 built like norm1 and norm3")
@at("tt_impl.models.wan22.block:WanBlock.__init__")
def wan_norm2_without_affine(original: Callable, self: Any, *args: Any) -> None:
    original(self, *args)
    self._norm2 = [ttnn.full_like(x, value) for x, value in zip(self._norm2, (1.0, 0.0), strict=True)]


@outside("The time step is rounded to bf16 before its sinusoid.", "inputs cast to the storage dtype at once")
@at("tt_impl.models.wan22.embeddings:ConditionEmbedder.time")
def wan_timestep_in_bf16(original: Callable, self: Any, t: Any) -> Any:
    return original(self, t.bfloat16().float())


@outside("The last norm is modulated by the time step after its silu.", "one tensor for blocks and output")
@at("tt_impl.models.wan22.transformer:WanTransformer._project_out")
def wan_output_after_silu(original: Callable, self: Any, x: Any, temb: Any) -> Any:
    return original(self, x, ttnn.silu(temb))


@outside("Patches go in with their channels outermost.", "the order of the convolution's weight, not its own")
@at("tt_impl.models.wan22.embeddings:put_tokens")
def wan_patches_channel_outermost(original: Callable, ctx: Any, patches: torch.Tensor) -> Any:
    return original(ctx, patches.unflatten(2, (-1, 16)).transpose(2, 3).flatten(2))


@outside("Every block has the weights of the first one.", "a loop that builds all blocks with one prefix")
@at("tt_impl.models.wan22.block:WanBlock.__init__")
def wan_blocks_of_one_index(original: Callable, self: Any, weights: Any, ctx: Any, config: Any, index: int) -> None:
    original(self, weights, ctx, config, 0)
    weights.leave(f"blocks.{index}.")
