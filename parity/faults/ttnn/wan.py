"""Faults of the device backend in Wan2.2: positions, norms over all heads, cross-attention, modulation, patches.

They run on one block of four heads of 64 features, or on the tiny transformer where the mistake lies around the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from parity.cases import BlockShape, Case, Layout, ModelShape, make_case
from parity.faults.ttnn.tools import around, around_init, fault

ROTARY, NORMS, CROSS = "video positions", "norms over heads", "cross-attention"
MODULATION, AROUND = "modulation", "around the blocks"


def _block(mesh: str, parallel: str) -> Case:
    shape = BlockShape(75, 45)  # 3 x 5 x 5 patches, over two devices 64 and 11; a prompt of one tile and a half
    return make_case("ttnn_block", "wan22_tiny64_block", Layout(mesh, parallel), shape, dtype="bf16")


def _whole(model: str, mesh: str, parallel: str, batch: int = 1) -> Case:
    return make_case("ttnn_transformer", model, Layout(mesh, parallel), ModelShape((3, 8, 12), 29, batch), dtype="bf16")


SP2, TP2, SP2_TP2 = _block("n300", "sp2"), _block("n300", "tp2"), _block("bh-qb", "sp2_tp2")
WHOLE, SAMPLES = _whole("wan22_tiny64", "n300", "tp2"), _whole("wan22_tiny64", "n300", "sp2", batch=2)
UNEVEN = _whole("wan22_uneven64", "n300", "tp2")  # three heads on two devices


@fault(
    ROTARY, SP2, "Rows and columns of the video change places in RoPE.", "positions listed as (t, x, y), latents as HW"
)
def wan_rows_and_columns_swapped() -> None:
    from tt_impl.models.wan22 import embeddings

    def positions(original: Callable, *where: Any) -> Any:
        frames, rows, columns = original(*where)
        return frames, columns, rows

    around(embeddings, "token_positions", positions)


@fault(
    ROTARY,
    SP2,
    "The frames' share of a head stands last and is as wide as the rows'.",
    "44, 42, 42 features dealt out as 42, 42, 44",
)
def wan_share_of_frames_last() -> None:
    from tt_impl.models.wan22 import embeddings

    around(embeddings, "rotary_angles", lambda original, positions, sizes: original(positions, sizes[::-1]))


@fault(
    ROTARY,
    SP2,
    "RoPE starts anew at position 0 on every device of sp.",
    "tables made from the length of a shard and replicated",
)
def wan_positions_of_the_first_shard() -> None:
    from tt_impl.models.wan22 import embeddings

    def tables(original: Callable, ctx: Any, angles: torch.Tensor, **more: Any) -> Any:
        return original(ctx, angles[: len(angles) // ctx.sp].repeat(ctx.sp, 1), **more)

    around(embeddings, "pair_rotary", tables)


@fault(ROTARY, SP2, "Keys are not turned by their positions.", "rotary tables handed to the norm of the queries only")
def wan_keys_not_turned() -> None:
    from tt_impl.layers.norm import DistributedRMSNorm

    def init(original: Callable, self: Any, weights: Any, ctx: Any, name: str, **sizes: Any) -> None:
        original(self, weights, ctx, name, **sizes)
        self.of_keys = name.endswith("norm_k")

    around_init(DistributedRMSNorm, init)
    around(
        DistributedRMSNorm,
        "__call__",
        lambda original, self, x, rotary=None: original(self, x, None if self.of_keys else rotary),
    )


@fault(
    ROTARY,
    SP2,
    "Padding counts as keys: logical_n is the padded number of tokens.",
    "logical_n of an attention without prompt read from the tensor's shape",
)
def wan_logical_n_missing() -> None:
    from tt_impl.models.wan22 import attention

    def padded(original: Callable, ctx: Any, qkv: Any, prompt: Any, **_: Any) -> Any:
        return original(ctx, qkv, prompt, logical_n=qkv[0].shape[2] * ctx.sp)

    around(attention, "joint_attention", padded)


def _own_statistics(heads: bool) -> None:
    """After the gather every device takes its own statistics for everyone's: of norms over heads, or of layer norms."""
    import ttnn

    from tt_impl.layers import norm

    def gather(original: Callable, ctx: Any, stats: Any) -> Any:
        whole = original(ctx, stats)
        mine = (stats.dtype == ttnn.float32) == heads
        return ttnn.concat([stats] * ctx.tp, dim=3) if mine else whole

    around(norm, "gather_features", gather)


@fault(
    NORMS,
    SP2_TP2,
    "Queries and keys are normalised over a device's own heads.",
    "an RMS norm of one device on features cut over tp",
)
def wan_norm_over_local_heads() -> None:
    _own_statistics(heads=True)


@fault(
    NORMS,
    SP2_TP2,
    "Layer norms take mean and variance of a device's own features.",
    "a layer norm of one device on a stream cut over tp",
)
def wan_mean_of_local_features() -> None:
    _own_statistics(heads=False)


@fault(NORMS, TP2, "Queries and keys are normalised head by head.", "the norm of SD3.5 and Flux.1, whose weights fit")
def wan_norm_per_head() -> None:
    import ttnn

    from tt_impl.layers.norm import DistributedRMSNorm

    def finish(original: Callable, self: Any, x: Any, stats: Any, rotary: Any) -> Any:
        size = x.shape[3] // self._local_heads
        heads = [x[:, :, :, start : start + size] for start in range(0, x.shape[3], size)]
        normed = ttnn.concat([ttnn.rms_norm(head, epsilon=self._eps) for head in heads], dim=3)
        return original(self, normed, ttnn.full_like(stats, x.shape[3]), rotary)  # whose mean square is 1 already

    around(DistributedRMSNorm, "_finish", finish)


@fault(NORMS, UNEVEN, "The norm over all heads counts padded ones.", "a mean over the lanes that a device has")
def wan_norm_counts_padded_heads() -> None:
    from tt_impl.layers.norm import DistributedRMSNorm

    def init(original: Callable, self: Any, *args: Any, **sizes: Any) -> None:
        original(self, *args, **sizes)
        self._correction = 1.0

    around_init(DistributedRMSNorm, init)


@fault(
    CROSS,
    SAMPLES,
    "A sample attends to the prompt of the other one.",
    "negative and positive prompt stacked in the other order than the latents",
)
def wan_prompt_of_the_other_sample() -> None:
    import ttnn

    from tt_impl.models.wan22.attention import CrossAttention

    def attend(original: Callable, self: Any, spatial: Any, prompt: Any, *image: Any) -> Any:
        return original(self, spatial, ttnn.concat([prompt[1:2], prompt[0:1]], dim=0))

    around(CrossAttention, "__call__", attend)


@fault(
    CROSS,
    TP2,
    "The prompt's last tokens are no keys.",
    "prompt tokens rounded down to whole tiles where 45 are no tile",
)
def wan_prompt_cut_to_whole_tiles() -> None:
    from tt_impl.models.wan22.attention import CrossAttention

    def attend(original: Callable, self: Any, spatial: Any, prompt: Any, *image: Any) -> Any:
        return original(self, spatial, prompt[:, :, : prompt.shape[2] // 32 * 32], *image)

    around(CrossAttention, "__call__", attend)


@fault(CROSS, TP2, "Keys and values of the prompt change places.", "the fused linear of both in the order V, K")
def wan_prompt_values_as_keys() -> None:
    from tt_impl.layers.linear import ColParallelQKV

    around(ColParallelQKV, "_per_device", lambda original, self, x: original(self, x.flip(0) if len(x) == 2 else x))


@fault(
    CROSS,
    TP2,
    "The devices' heads of the prompt's values lie in the opposite order.",
    "shards of one fused weight reversed, which every shape allows",
)
def wan_heads_of_values_reversed() -> None:
    from tt_impl.layers.linear import ColParallelQKV

    def per_device(original: Callable, self: Any, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 2:
            values = x[1].unflatten(0, (self._ctx.tp, -1)).flip(0).flatten(0, 1)
            x = torch.stack([x[0], values])
        return original(self, x)

    around(ColParallelQKV, "_per_device", per_device)


@fault(
    CROSS,
    TP2,
    "Cross-attention adds a device's own partial sum.",
    "a row-parallel linear followed by a plain partition, whose shape is the same",
)
def wan_cross_attention_not_reduced() -> None:
    import ttnn

    from tt_impl.layers import linear
    from tt_impl.models.wan22.attention import CrossAttention

    def attend(original: Callable, self: Any, spatial: Any, prompt: Any, *image: Any) -> Any:
        reduce = linear.reduce_scatter_features
        linear.reduce_scatter_features = lambda ctx, x: ttnn.mesh_partition(x, dim=3, cluster_axis=ctx.tp_axis)
        try:
            return original(self, spatial, prompt, *image)
        finally:
            linear.reduce_scatter_features = reduce

    around(CrossAttention, "__call__", attend)


def _chunks(change: Callable[[list], list]) -> None:
    from tt_impl.layers.modulation import ModulationTable

    around(ModulationTable, "__call__", lambda original, self, time: change(original(self, time)))


@fault(MODULATION, TP2, "Shift and gate of the feed-forward change places.", "six chunks unpacked in another order")
def wan_shift_and_gate_swapped() -> None:
    _chunks(lambda chunks: [*chunks[:3], chunks[5], chunks[4], chunks[3]])


@fault(MODULATION, TP2, "The feed-forward takes self-attention's chunks.", "the first three of six chunks used twice")
def wan_chunks_used_twice() -> None:
    _chunks(lambda chunks: [*chunks[:3], *chunks[:3]])


@fault(MODULATION, TP2, "Streams are multiplied by scale instead of 1 + scale.", "the 1 of adaptive norms left out")
def wan_scale_without_one() -> None:
    from tt_impl.layers.modulation import ModulationTable

    def init(original: Callable, self: Any, ctx: Any, table: torch.Tensor, *, scales: Any) -> None:
        original(self, ctx, table, scales=())

    around_init(ModulationTable, init)


@fault(
    MODULATION, TP2, "The norm before cross-attention has no weight and no bias.", "norm2 built like norm1 and norm3"
)
def wan_norm2_without_affine() -> None:
    import ttnn

    from tt_impl.models.wan22.block import WanBlock

    def init(original: Callable, self: Any, *args: Any) -> None:
        original(self, *args)
        self._norm2 = [ttnn.full_like(x, value) for x, value in zip(self._norm2, (1.0, 0.0), strict=True)]

    around_init(WanBlock, init)


@fault(
    AROUND, WHOLE, "The time step is rounded to bf16 before its sinusoid.", "inputs cast to the storage dtype at once"
)
def wan_timestep_in_bf16() -> None:
    from tt_impl.models.wan22.embeddings import ConditionEmbedder

    around(ConditionEmbedder, "time", lambda original, self, t: original(self, t.bfloat16().float()))


@fault(AROUND, WHOLE, "The last norm is modulated by the time step after its silu.", "one tensor for blocks and output")
def wan_output_after_silu() -> None:
    import ttnn

    from tt_impl.models.wan22.transformer import WanTransformer

    around(WanTransformer, "_project_out", lambda original, self, x, temb: original(self, x, ttnn.silu(temb)))


@fault(
    AROUND, WHOLE, "Patches go in with their channels outermost.", "the order of the convolution's weight, not its own"
)
def wan_patches_channel_outermost() -> None:
    from tt_impl.models.wan22 import embeddings

    def put(original: Callable, ctx: Any, patches: torch.Tensor) -> Any:
        return original(ctx, patches.unflatten(2, (-1, 16)).transpose(2, 3).flatten(2))

    around(embeddings, "put_tokens", put)


@fault(AROUND, WHOLE, "Every block has the weights of the first one.", "a loop that builds all blocks with one prefix")
def wan_blocks_of_one_index() -> None:
    from tt_impl.models.wan22.block import WanBlock

    def init(original: Callable, self: Any, weights: Any, ctx: Any, config: Any, index: int) -> None:
        original(self, weights, ctx, config, 0)
        weights.leave(f"blocks.{index}.")

    around_init(WanBlock, init)
