"""Faults of the device backend in what each device holds: shard dims and axes, Q/K/V order, head padding, storage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from parity.faults.around import Patch, at, together
from parity.faults.registry import fault
from parity.faults.ttnn.cases import SP2_TP2, TP2, TP2_DUAL, TP8
from parity.faults.ttnn.device import ttnn

weights = partial(fault, "weights", case=TP2)
heads = partial(fault, "heads", case=TP2)


@weights(
    "The row-parallel weight is cut along its output instead of its input.",
    "dims of ShardTensor2dMesh taken from the column-parallel layer next to it",
    says="inner dimensions must match",
)
@at("tt_impl.parallel.context:Context.put", within="tt_impl.layers.linear:RowParallelLinear.__init__")
def row_weight_cut_along_output(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
    return original(ctx, x, **(where | {"tp_dim": 3}))


@weights(
    "Every device holds its neighbour's part of the column-parallel weights.",
    "ranks of a group counted from another corner of the mesh than ttnn does",
)
@at("tt_impl.parallel.context:Context.put", within="tt_impl.layers.linear:ColParallelLinear.__init__")
def col_weight_of_the_neighbour(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
    return original(ctx, x.roll(x.shape[3] // ctx.tp, 3) if x.shape[2] > 1 else x, **where)


@weights(
    "The column-parallel weights are cut over the sequence axis of the mesh.",
    "mesh axis 0 and 1 exchanged on a square mesh, where every shape still fits",
    case=SP2_TP2,
    says="devices that should hold the same tensor differ in it",
)
@at("tt_impl.parallel.context:Context.put", within="tt_impl.layers.linear:ColParallelLinear.__init__")
def col_weight_on_the_wrong_axis(
    original: Callable, ctx: Any, x: torch.Tensor, *, tp_dim: int | None = None, **more: Any
) -> Any:
    return original(ctx, x, sp_dim=tp_dim, **more)


@weights("bfp4_b weights where bf16 is meant.", "a dtype meant for one layer of another model left in a shared default")
@at("tt_impl.parallel.context:Context.put")
def weights_in_bfp4(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
    matrix = x.shape[0] == 1 and x.shape[-2] >= x.shape[-1] // 16 and x.shape[-2] > 128
    return original(ctx, x, **(where | {"dtype": ttnn.bfloat4_b} if matrix else where))


@heads("The fused QKV holds K, Q, V.", "the order of the reshuffle of Q, K and V taken from another framework")
@at("tt_impl.layers.linear:ColParallelQKV._per_device")
def qkv_order_kqv(original: Callable, self: Any, x: Any) -> Any:
    return original(self, x[[1, 0, 2]])


@heads(
    "The fused QKV is cut as all Q, all K, all V, without giving each device its own of all three.",
    "fused weights sharded as they lie in the checkpoint",
)
@at("tt_impl.layers.linear:ColParallelQKV._per_device")
def qkv_reshuffle_omitted(original: Callable, self: Any, x: Any) -> Any:
    return x.flatten(0, 1)


@heads(
    "Padded heads hold garbage and the output projection does not mask them.",
    "padding of 3 heads to 8 (38 to 40 in the large model) with uninitialised memory",
    case=TP8,
)
def head_padding_unmasked() -> Patch:
    pad_to = "tt_impl.layers.linear:pad_to"
    inputs = at(pad_to, within="tt_impl.layers.linear:ColParallelQKV.__init__")(_garbage_in_rows)
    outputs = at(pad_to, within="tt_impl.layers.linear:RowParallelLinear.__init__")(_garbage_in_columns)
    return together(inputs(), outputs())


def _garbage_in_rows(original: Callable, x: torch.Tensor, *sizes: int) -> torch.Tensor:
    y = original(x, *sizes)
    if x.ndim == 2:
        y[x.shape[0] :, : x.shape[1]] = 0.05
    return y


def _garbage_in_columns(original: Callable, x: torch.Tensor, *sizes: int) -> torch.Tensor:
    y = original(x, *sizes)
    if x.ndim == 2:
        y[: x.shape[0], x.shape[1] :] = 0.05
    return y


@heads("Heads per device are rounded down, so the last head is lost.", "heads // tp where it must be ceil")
@at("tt_impl.layers.linear:padded_heads")
def heads_rounded_down(_: Callable, heads: int, factor: int) -> int:
    return heads // factor * factor


@heads("Queries and keys are not normalised.", "qk_norm missing, as in the model this one was copied from")
@at("tt_impl.layers.norm:RMSNorm.__call__")
def qk_norm_omitted(_: Callable, self: Any, x: Any) -> Any:
    return x


@heads(
    "The norm of the prompt's keys has the weight of its queries.",
    "a name copied and not changed, with a shape that fits",
)
@at("tt_impl.layers.norm:RMSNorm.__init__")
def qk_norm_of_the_wrong_name(original: Callable, self: Any, weights: Any, ctx: Any, name: str, **sizes: Any) -> None:
    original(self, weights, ctx, name.replace("norm_added_k", "norm_added_q"), **sizes)


@heads("The second attention of a dual block is left out.", "dual_attention_layers not read", case=TP2_DUAL)
@at("tt_impl.blocks.double:DoubleStreamBlock.__init__")
def dual_attention_forgotten(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self._second = None
