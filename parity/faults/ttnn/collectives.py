"""Faults of the device backend in tensor parallelism: gathers, reductions, biases, distributed norms, modulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from parity.faults.around import Patch, at, instead
from parity.faults.registry import fault
from parity.faults.ttnn.cases import SP2_TP2, SP2_TP4, TP2
from parity.faults.ttnn.device import ttnn


def _gathering(gather: Callable[[Any, Any], Any]) -> Patch:
    """Let linears gather their input by ``gather(ctx, x)``."""
    from tt_impl.layers import linear

    def gather_matmul(ctx: Any, x: Any, weight: Any, bias: Any = None, **more: Any) -> Any:
        return linear.matmul(ctx, gather(ctx, x), weight, bias, **more)

    return instead(linear, "gather_matmul", gather_matmul)


collectives = partial(fault, "collectives", case=TP2)
norms = partial(fault, "norms", case=TP2)
modulation = partial(fault, "modulation", case=TP2)


@collectives(
    "Features are gathered along the sequence axis of the mesh.",
    "cluster_axis of the other parallelism, on a square mesh where every shape still fits",
    case=SP2_TP2,
)
def gather_on_the_wrong_axis() -> Patch:
    return _gathering(lambda ctx, x: ctx.ccl.all_gather(x, dim=3, axis=1 - ctx.tp_axis))


@collectives(
    "Rows instead of features are gathered.",
    "dim of all_gather left at that of the sequence",
    says="inner dimensions must match",
)
def gather_on_the_wrong_dim() -> Patch:
    return _gathering(lambda ctx, x: ctx.ccl.all_gather(x, dim=2, axis=ctx.tp_axis))


@collectives(
    "Partial sums are reduced along the sequence axis of the mesh.",
    "cluster_axis of the other parallelism, on a square mesh where every shape still fits",
    case=SP2_TP2,
    says="devices that should hold the same tensor differ in it",
)
@at("tt_impl.layers.linear:reduce_scatter_features")
def reduce_on_the_wrong_axis(_: Callable, ctx: Any, x: Any) -> Any:
    return ctx.ccl.reduce_scatter(x, dim=3, axis=1 - ctx.tp_axis)


@collectives(
    "No reduce_scatter: every device keeps its lanes of its own partial sum.",
    "a row-parallel linear followed by a plain partition, whose shape is the same",
)
@at("tt_impl.layers.linear:reduce_scatter_features")
def reduce_scatter_missing(_: Callable, ctx: Any, x: Any) -> Any:
    return ttnn.mesh_partition(x, dim=3, cluster_axis=ctx.tp_axis)


@collectives(
    "Partial sums are reduced twice, which makes them tp times too large.",
    "an all_reduce in the layer and another one in the block that calls it",
)
@at("tt_impl.layers.linear:reduce_scatter_features")
def reduced_twice(original: Callable, ctx: Any, x: Any) -> Any:
    from tt_impl.parallel.tensor import gather_features

    return original(ctx, gather_features(ctx, original(ctx, x)))


@collectives(
    "The bias is added before the reduction, tp times.",
    "the same bias handed to every member's matmul in a row-parallel layer",
)
@at("tt_impl.parallel.context:Context.put", within="tt_impl.layers.linear:RowParallelLinear.__init__")
def bias_before_the_reduction(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
    local = x[..., : x.shape[3] // ctx.tp]
    return original(ctx, local.repeat(1, 1, 1, ctx.tp) if x.shape[2] == 1 else x, **where)


@collectives("The bias of row-parallel linears is forgotten.", "a bias loaded and never added")
@at("tt_impl.parallel.context:Context.put", within="tt_impl.layers.linear:RowParallelLinear.__init__")
def bias_forgotten(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
    return original(ctx, x * 0 if x.shape[2] == 1 else x, **where)


@norms(
    "Statistics of the layer norm are not gathered: each device normalises its own lanes.",
    "a distributed norm without its all_gather",
    says="stats|width|shape",
)
@at("tt_impl.layers.norm:gather_features")
def norm_statistics_local(_: Callable, ctx: Any, stats: Any) -> Any:
    return stats


@norms(
    "Every device takes the first device's statistics of the layer norm for everyone's.",
    "a broadcast where an all_gather is meant",
)
@at("tt_impl.layers.norm:gather_features")
def norm_statistics_of_one(_: Callable, ctx: Any, stats: Any) -> Any:
    return ttnn.concat([stats] * ctx.tp, 3)


@norms(
    "The layer norm divides by the number of padded lanes.",
    "192 features in 256 lanes (2432 in 2560 in the large model), the mean taken over all of them",
    case=SP2_TP4,
)
@at("tt_impl.layers.norm:DistributedLayerNorm.__init__")
def norm_counts_padding(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    self._correction = 1.0


@modulation("The gate of attention is forgotten.", "a residual added without its gate")
@at("tt_impl.layers.modulation:Modulation.__call__")
def gate_forgotten(original: Callable, self: Any, time: Any) -> list:
    shift, scale, gate, *rest = original(self, time)
    return [shift, scale, ttnn.add(ttnn.multiply(gate, 0.0), 1.0), *rest]


@modulation("Shift and scale change places.", "another model's order of chunks")
@at("tt_impl.layers.modulation:Modulation.__call__")
def shift_and_scale_swapped(original: Callable, self: Any, time: Any) -> list:
    shift, scale, *rest = original(self, time)
    return [scale, shift, *rest]


@modulation(
    "The modulation's chunks are cut over tp as they lie in the checkpoint, not lane by lane.",
    "a fused projection sharded without a reshuffle",
)
@at("tt_impl.parallel.context:Context.put", within="tt_impl.layers.modulation:Modulation.__init__")
def modulation_reshuffle_omitted(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
    return original(ctx, x.unflatten(3, (ctx.tp, 6, -1)).transpose(3, 4).flatten(3), **where)


@modulation("Scales are taken for 1 + scale.", "the 1 that is part of a bias, left out of the bias")
@at("tt_impl.layers.modulation:Modulation.__init__")
def scale_without_its_one(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **(kwargs | {"scales": ()}))


@modulation("Stream and result change places: stream * gate + result.", "the operands of addcmul in another order")
@at("tt_impl.layers.linear:add_gated")
def gate_on_the_stream(original: Callable, onto: Any, result: Any) -> Any:
    return original(type(onto)(result, onto.gate), onto.stream)


@collectives("The activation is lost with the op it is fused into.", "fused_activation never handed on")
@at("tt_impl.layers.linear:matmul", "tt_impl.layers.linear:gather_matmul")
def activation_not_handed_on(original: Callable, *args: Any, activation: Any = None, **more: Any) -> Any:
    return original(*args, **more)
