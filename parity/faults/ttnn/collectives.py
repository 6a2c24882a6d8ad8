"""Faults of the device backend in tensor parallelism: gathers, reductions, biases, distributed norms, modulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from parity.faults.ttnn.tools import SP2_TP2, SP2_TP4, TP2, around, around_init, fault, while_building

COLLECTIVES, NORMS, MODULATION = "collectives", "norms", "modulation"


def _gathering(gather: Callable[[Any, Any], Any]) -> None:
    """Linears gather their input by ``gather(ctx, x)``."""
    from tt_impl.layers import linear

    linear.gather_matmul = lambda ctx, x, weight, bias=None, **more: linear.matmul(
        ctx, gather(ctx, x), weight, bias, **more
    )


@fault(
    COLLECTIVES,
    SP2_TP2,
    "Features are gathered along the sequence axis of the mesh.",
    "cluster_axis of the other parallelism, on a square mesh where every shape still fits",
)
def gather_on_the_wrong_axis() -> None:
    _gathering(lambda ctx, x: ctx.ccl.all_gather(x, dim=3, axis=1 - ctx.tp_axis))


@fault(
    COLLECTIVES,
    TP2,
    "Rows instead of features are gathered.",
    "dim of all_gather left at that of the sequence",
    says="inner dimensions must match",
)
def gather_on_the_wrong_dim() -> None:
    _gathering(lambda ctx, x: ctx.ccl.all_gather(x, dim=2, axis=ctx.tp_axis))


@fault(
    COLLECTIVES,
    SP2_TP2,
    "Partial sums are reduced along the sequence axis of the mesh.",
    "cluster_axis of the other parallelism, on a square mesh where every shape still fits",
    says="devices that should hold the same tensor differ in it",
)
def reduce_on_the_wrong_axis() -> None:
    from tt_impl.layers import linear

    linear.reduce_scatter_features = lambda ctx, x: ctx.ccl.reduce_scatter(x, dim=3, axis=1 - ctx.tp_axis)


@fault(
    COLLECTIVES,
    TP2,
    "No reduce_scatter: every device keeps its lanes of its own partial sum.",
    "a row-parallel linear followed by a plain partition, whose shape is the same",
)
def reduce_scatter_missing() -> None:
    import ttnn

    from tt_impl.layers import linear

    linear.reduce_scatter_features = lambda ctx, x: ttnn.mesh_partition(x, dim=3, cluster_axis=ctx.tp_axis)


@fault(
    COLLECTIVES,
    TP2,
    "Partial sums are reduced twice, which makes them tp times too large.",
    "an all_reduce in the layer and another one in the block that calls it",
)
def reduced_twice() -> None:
    from tt_impl.layers import linear
    from tt_impl.parallel.tensor import gather_features

    around(
        linear,
        "reduce_scatter_features",
        lambda original, ctx, x: original(ctx, gather_features(ctx, original(ctx, x))),
    )


@fault(
    COLLECTIVES,
    TP2,
    "The bias is added before the reduction, tp times.",
    "the same bias handed to every member's matmul in a row-parallel layer",
)
def bias_before_the_reduction() -> None:
    from tt_impl.layers.linear import RowParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        own = x[..., : x.shape[3] // ctx.tp]
        return original(ctx, own.repeat(1, 1, 1, ctx.tp) if x.shape[2] == 1 else x, **where)

    while_building(RowParallelLinear, put)


@fault(COLLECTIVES, TP2, "The bias of row-parallel linears is forgotten.", "a bias loaded and never added")
def bias_forgotten() -> None:
    from tt_impl.layers.linear import RowParallelLinear

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        return original(ctx, x * 0 if x.shape[2] == 1 else x, **where)

    while_building(RowParallelLinear, put)


@fault(
    NORMS,
    TP2,
    "Statistics of the layer norm are not gathered: each device normalises its own lanes.",
    "a distributed norm without its all_gather",
    says="stats|width|shape",
)
def norm_statistics_local() -> None:
    from tt_impl.layers import norm

    norm.gather_features = lambda ctx, stats: stats


@fault(
    NORMS,
    TP2,
    "Every device takes the first device's statistics of the layer norm for everyone's.",
    "a broadcast where an all_gather is meant",
)
def norm_statistics_of_one() -> None:
    import ttnn

    from tt_impl.layers import norm

    norm.gather_features = lambda ctx, stats: ttnn.concat([stats] * ctx.tp, 3)


@fault(
    NORMS,
    SP2_TP4,
    "The layer norm divides by the number of padded lanes.",
    "192 features in 256 lanes (2432 in 2560 in the large model), the mean taken over all of them",
)
def norm_counts_padding() -> None:
    from tt_impl.layers.norm import DistributedLayerNorm

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._correction = 1.0

    around_init(DistributedLayerNorm, init)


def _chunks(change: Callable[[list], list]) -> None:
    from tt_impl.layers.modulation import Modulation

    around(Modulation, "__call__", lambda original, self, time: change(original(self, time)))


@fault(MODULATION, TP2, "The gate of attention is forgotten.", "a residual added without its gate")
def gate_forgotten() -> None:
    import ttnn

    _chunks(lambda chunks: [ttnn.add(ttnn.multiply(c, 0.0), 1.0) if i == 2 else c for i, c in enumerate(chunks)])


@fault(MODULATION, TP2, "Shift and scale change places.", "another model's order of chunks")
def shift_and_scale_swapped() -> None:
    _chunks(lambda chunks: [chunks[1], chunks[0], *chunks[2:]])


@fault(
    MODULATION,
    TP2,
    "The modulation's chunks are cut over tp as they lie in the checkpoint, not lane by lane.",
    "a fused projection sharded without a reshuffle",
)
def modulation_reshuffle_omitted() -> None:
    from tt_impl.layers.modulation import Modulation

    def put(original: Callable, ctx: Any, x: torch.Tensor, **where: Any) -> Any:
        return original(ctx, x.unflatten(3, (ctx.tp, 6, -1)).transpose(3, 4).flatten(3), **where)

    while_building(Modulation, put)


@fault(MODULATION, TP2, "Scales are taken for 1 + scale.", "the 1 that is part of a bias, left out of the bias")
def scale_without_its_one() -> None:
    from tt_impl.layers.modulation import Modulation

    def init(original: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **(kwargs | {"scales": ()}))

    around_init(Modulation, init)


@fault(
    MODULATION,
    TP2,
    "Stream and result change places: stream * gate + result.",
    "the operands of addcmul in another order",
)
def gate_on_the_stream() -> None:
    from tt_impl.layers import linear

    around(linear, "add_gated", lambda original, onto, result: original(type(onto)(result, onto.gate), onto.stream))


@fault(COLLECTIVES, TP2, "The activation is lost with the op it is fused into.", "fused_activation never handed on")
def activation_not_handed_on() -> None:
    from tt_impl.layers import linear

    for name in ("matmul", "gather_matmul"):
        around(linear, name, lambda original, *args, activation=None, **more: original(*args, **more))
