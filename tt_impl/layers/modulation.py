"""AdaLN-Zero: shift, scale and gate chunks of the time embedding, each cut over tp like the residual stream."""

from __future__ import annotations

import ttnn

from refsim.checkpoint import Weights
from tt_impl.layers.linear import pad_to
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features


class Modulation:
    """One linear D -> chunks * D whose out features are ordered so that a device gets its lanes of every chunk.

    Args:
        in_features: of the time embedding, where it is not as wide as the stream.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        features: int,
        chunks: int,
        in_features: int | None = None,
    ) -> None:
        self._ctx, self._chunks = ctx, chunks
        padded, width = padded_features(features, ctx.tp), in_features or features
        weight = weights.take(f"{name}.weight", (chunks * features, width)).unflatten(0, (chunks, features))
        bias = weights.take(f"{name}.bias", (chunks * features,)).unflatten(0, (chunks, features))
        weight = pad_to(weight, padded, width).unflatten(1, (ctx.tp, -1)).transpose(0, 1).flatten(0, 2)
        bias = pad_to(bias, padded).unflatten(1, (ctx.tp, -1)).transpose(0, 1).flatten()
        self._weight = ctx.put(weight.t()[None, None], tp_dim=3)
        self._bias = ctx.put(bias[None, None, None], tp_dim=3)

    def __call__(self, time_BD: ttnn.Tensor) -> list[ttnn.Tensor]:
        """(B, 1, 1, D) with silu applied -> per chunk (B, 1, 1, local D)."""
        y = ttnn.linear(time_BD, self._weight, bias=self._bias, compute_kernel_config=self._ctx.linear_config)
        return ttnn.chunk(y, self._chunks, -1)


def modulate(x: ttnn.Tensor, shift: ttnn.Tensor, scale: ttnn.Tensor) -> ttnn.Tensor:
    """``x * (1 + scale) + shift``."""
    return ttnn.add(ttnn.multiply(x, ttnn.add(scale, 1.0)), shift)
