"""The Megatron pair: column-parallel in, GELU, row-parallel out, reduce_scatter."""

from __future__ import annotations

import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.layers.linear import ColParallelLinear, RowParallelLinear
from tt_impl.layers.matmul import Residual
from tt_impl.parallel.context import Context


class ParallelFeedForward:
    """D -> F -> D with tanh GELU; input and output cut over tp."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, features: int, hidden: int) -> None:
        wide = {"in_features": features, "out_features": hidden, "gathered_input": True}
        self._in = ColParallelLinear(weights, ctx, f"{name}.net.0.proj", **wide)
        self._out = RowParallelLinear(weights, ctx, f"{name}.net.2", in_features=hidden, out_features=features)

    def of_shards(self, x: ttnn.Tensor, onto: Residual | None = None) -> ttnn.Tensor:
        """(B, 1, rows, local D), gathered on the way -> the same; with ``onto``, gated and added to its stream."""
        return self._out(self._in.of_shards(x, "gelu_tanh", within=True), onto)
