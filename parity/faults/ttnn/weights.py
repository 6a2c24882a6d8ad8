"""Faults of the device backend in what each device holds: shard dims and axes, Q/K/V order, head padding, storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from parity.faults.ttnn.tools import SP2_TP2, TP2, TP2_DUAL, TP8, around, around_init, fault, while_building

WEIGHTS, HEADS = "weights", "heads"


@fault(
    WEIGHTS,
    TP2,
    "The row-parallel weight is cut along its output instead of its input.",
    "dims of ShardTensor2dMesh taken from the column-parallel layer next to it",
    says="inner dimensions must match",
)
def row_weight_cut_along_output() -> None:
    from tt_impl.layers.linear import RowParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        return original(ctx, x, **(where | {"tp_dim": 3}))

    while_building(RowParallelLinear, put)


@fault(
    WEIGHTS,
    TP2,
    "Every device holds its neighbour's part of the column-parallel weights.",
    "ranks of a group counted from another corner of the mesh than ttnn does",
)
def col_weight_of_the_neighbour() -> None:
    from tt_impl.layers.linear import ColParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        return original(ctx, x.roll(x.shape[3] // ctx.tp, 3) if x.shape[2] > 1 else x, **where)

    while_building(ColParallelLinear, put)


@fault(
    WEIGHTS,
    SP2_TP2,
    "The column-parallel weights are cut over the sequence axis of the mesh.",
    "mesh axis 0 and 1 exchanged on a square mesh, where every shape still fits",
    says="devices that should hold the same tensor differ in it",
)
def col_weight_on_the_wrong_axis() -> None:
    from tt_impl.layers.linear import ColParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, *, tp_dim: int | None = None, **more: Any) -> Any:
        return original(ctx, x, sp_dim=tp_dim, **more)

    while_building(ColParallelLinear, put)


@fault(
    WEIGHTS,
    TP2,
    "bfp4_b weights where bf16 is meant.",
    "a dtype meant for one layer of another model left in a shared default",
)
def weights_in_bfp4() -> None:
    import ttnn

    from tt_impl.parallel.context import Context

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        matrix = x.shape[0] == 1 and x.shape[-2] >= x.shape[-1] // 16 and x.shape[-2] > 128
        return original(ctx, x, **(where | {"dtype": ttnn.bfloat4_b} if matrix else where))

    around(Context, "put", put)


@fault(
    HEADS,
    TP2,
    "The fused QKV holds K, Q, V.",
    "the order of the reshuffle of Q, K and V taken from another framework",
)
def qkv_order_kqv() -> None:
    from tt_impl.layers.linear import ColParallelQKV

    around(ColParallelQKV, "_per_device", lambda original, self, x: original(self, x[[1, 0, 2]]))


@fault(
    HEADS,
    TP2,
    "The fused QKV is cut as all Q, all K, all V, without giving each device its own of all three.",
    "fused weights sharded as they lie in the checkpoint",
)
def qkv_reshuffle_omitted() -> None:
    from tt_impl.layers.linear import ColParallelQKV

    around(ColParallelQKV, "_per_device", lambda original, self, x: x.flatten(0, 1))


@fault(
    HEADS,
    TP8,
    "Padded heads hold garbage and the output projection does not mask them.",
    "padding of 3 heads to 8 (38 to 40 in the large model) with uninitialised memory",
)
def head_padding_unmasked() -> None:
    from tt_impl.layers import linear

    def garbage(rows: bool) -> Callable:
        def pad_to(original: Callable, x: torch.Tensor, *sizes: int) -> torch.Tensor:
            y = original(x, *sizes)
            if x.ndim == 2:
                beyond = (slice(x.shape[0], None), slice(x.shape[1]))
                y[beyond if rows else (slice(x.shape[0]), slice(x.shape[1], None))] = 0.05
            return y

        return pad_to

    for cls, rows in {linear.ColParallelQKV: True, linear.RowParallelLinear: False}.items():

        def init(original: Callable, self: Any, *args: Any, _rows: bool = rows, **kwargs: Any) -> None:
            plain = linear.pad_to
            around(linear, "pad_to", garbage(_rows))
            try:
                original(self, *args, **kwargs)
            finally:
                linear.pad_to = plain

        around_init(cls, init)


@fault(HEADS, TP2, "Heads per device are rounded down, so the last head is lost.", "heads // tp where it must be ceil")
def heads_rounded_down() -> None:
    from tt_impl.layers import linear

    setattr(linear, "padded_heads", lambda heads, factor: heads // factor * factor)  # noqa: B010 - a patch


@fault(HEADS, TP2, "Queries and keys are not normalised.", "qk_norm missing, as in the model this one was copied from")
def qk_norm_omitted() -> None:
    from tt_impl.layers.norm import RMSNorm

    RMSNorm.__call__ = lambda self, x: x


@fault(
    HEADS,
    TP2,
    "The norm of the prompt's keys has the weight of its queries.",
    "a name copied and not changed, with a shape that fits",
)
def qk_norm_of_the_wrong_name() -> None:
    from tt_impl.layers.norm import RMSNorm

    def init(original: Callable, self: Any, weights: Any, ctx: Any, name: str, **sizes: Any) -> None:
        original(self, weights, ctx, name.replace("norm_added_k", "norm_added_q"), **sizes)

    around_init(RMSNorm, init)


@fault(HEADS, TP2_DUAL, "The second attention of a dual block is left out.", "dual_attention_layers not read")
def dual_attention_forgotten() -> None:
    from tt_impl.models.sd35.block import SD35Block

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._dual = False

    around_init(SD35Block, init)
