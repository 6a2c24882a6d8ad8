"""The Megatron pair: column-parallel in, an activation, row-parallel out, reduce_scatter.

gelu_tanh            in --> gelu --> out
swiglu               in [up | gate] --> up * silu(gate) --> out      both halves in one linear, each cut over tp
swiglu_gate_first    in [gate | up]
"""

from __future__ import annotations

import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.layers.linear import ColParallelLinear, PackedColumns, RowParallelLinear
from tt_impl.layers.matmul import Residual
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features

GATED = ("swiglu", "swiglu_gate_first")
"""Activations that take two halves."""


def gated(parts: list[ttnn.Tensor], activation: str) -> ttnn.Tensor:
    """Return the hidden features that both halves come to."""
    gate, up = parts if activation == "swiglu_gate_first" else parts[::-1]
    return ttnn.multiply(gate, up, input_tensor_a_activations=[ttnn.UnaryOpType.SILU])


class ParallelFeedForward:
    """D -> F -> D; input and output cut over tp.

    Args:
        hidden: F; a gated one's linear in has twice as many out features.
        activation_fn: see above.
        linears: what the linears in and out are called within it.
        bias: the linears have one.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        features: int,
        hidden: int,
        activation_fn: str = "gelu_tanh",
        linears: tuple[str, str] = ("net.0.proj", "net.2"),
        bias: bool = True,
    ) -> None:
        self._activation = activation_fn
        first, last = (f"{name}.{linear}" for linear in linears)
        self._in: ColParallelLinear | PackedColumns
        if activation_fn in GATED:
            parts = [(hidden, padded_features(hidden, ctx.tp))] * 2
            self._in = PackedColumns(weights, ctx, first, in_features=features, parts=parts, bias=bias)
        else:
            self._in = ColParallelLinear(
                weights, ctx, first, in_features=features, out_features=hidden, gathered_input=True, bias=bias
            )
        self._out = RowParallelLinear(weights, ctx, last, in_features=hidden, out_features=features, bias=bias)

    def of_shards(self, x: ttnn.Tensor, onto: Residual | None = None) -> ttnn.Tensor:
        """(B, 1, rows, local D), gathered on the way -> the same; with ``onto``, gated and added to its stream."""
        if isinstance(self._in, PackedColumns):
            return self._out(gated(self._in.of_shards(x), self._activation), onto)
        return self._out(self._in.of_shards(x, self._activation, within=True), onto)
