"""AdaLN-Zero: shift, scale and gate chunks of the time embedding, each cut over tp like the residual stream; and the
last layers, which take a shift and a scale of whole rows.

chunks of a device      [ its features of chunk 0 | its features of chunk 1 | ... ]
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.layers.linear import Linear, pad_to
from tt_impl.layers.matmul import matmul, split_matmul
from tt_impl.layers.norm import LayerNorm
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.tensor import gather_features


class Modulation:
    """One linear D -> chunks * D whose out features are ordered so that a device gets its features of every chunk.

    Args:
        in_features: of the time embedding, where it is not as wide as the stream.
        scales: chunks that come out as 1 + scale, the 1 being part of their bias (0 in padded features).
        bias: the linear has one.
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
        scales: tuple[int, ...] = (),
        bias: bool = True,
    ) -> None:
        self._ctx = ctx
        self._chunks = chunks
        padded = padded_features(features, ctx.tp)
        width = in_features or features
        weight = weights.take(f"{name}.weight", (chunks * features, width)).unflatten(0, (chunks, features))
        added = torch.tensor([[float(i in scales)] for i in range(chunks)], device=weight.device).expand(-1, features)
        if bias:
            added = added + weights.take(f"{name}.bias", (chunks * features,)).unflatten(0, (chunks, features))
        weight = pad_to(weight, padded, width).unflatten(1, (ctx.tp, -1)).transpose(0, 1).flatten(0, 2)
        added = pad_to(added, padded).unflatten(1, (ctx.tp, -1)).transpose(0, 1).flatten()
        self._weight = ctx.put_weight(weight.t()[None, None], tp_dim=3)
        self._bias = ctx.put(added[None, None, None], tp_dim=3)

    def __call__(self, time_BD: ttnn.Tensor) -> list[ttnn.Tensor]:
        """(B, 1, 1, D) with silu applied -> per chunk (B, 1, 1, local D)."""
        return split_matmul(self._ctx, time_BD, self._weight, self._bias, chunks=self._chunks)

    def joined(self, time_BD: ttnn.Tensor) -> ttnn.Tensor:
        """Return the chunks of a call side by side, (B, 1, 1, chunks * local D)."""
        return matmul(self._ctx, time_BD, self._weight, self._bias)


class ModulationTable:
    """A model's own chunks in fp32, to which the time step's are added; those that scale are kept as 1 + scale.

    Padded features are 0, also of what scales, so that modulation keeps them 0.

    Args:
        table_CD: one row per chunk.
        scales: the chunks that scale.
    """

    def __init__(self, ctx: Context, table_CD: torch.Tensor, *, scales: tuple[int, ...]) -> None:
        self._chunks = table_CD.shape[0]
        one = torch.tensor([float(chunk in scales) for chunk in range(self._chunks)], device=table_CD.device)
        self._table = put_chunks(ctx, (table_CD + one[:, None])[None], dtype=ttnn.float32)

    def __call__(self, time: ttnn.Tensor) -> list[ttnn.Tensor]:
        """(B, 1, 1, chunks * local D) -> per chunk (B, 1, 1, local D) in fp32."""
        return ttnn.chunk(ttnn.add(self._table, time, dtype=ttnn.float32), self._chunks, -1)


def put_chunks(ctx: Context, x_BCD: torch.Tensor, dtype: ttnn.DataType | None = None) -> ttnn.Tensor:
    """Chunks on the host -> (B, 1, 1, C * local D), each cut over tp by itself: a device has its features of all."""
    batch, chunks, features = x_BCD.shape
    by_device = pad_to(x_BCD, chunks, padded_features(features, ctx.tp)).unflatten(2, (ctx.tp, -1))
    return ctx.put(by_device.transpose(1, 2).reshape(batch, 1, 1, -1), tp_dim=3, dtype=dtype)


def modulate(x: ttnn.Tensor, shift: ttnn.Tensor | None, scale: ttnn.Tensor) -> ttnn.Tensor:
    """``x * (1 + scale) + shift``; without a shift, what is scaled."""
    scaled = ttnn.multiply(x, ttnn.add(scale, 1.0))
    return scaled if shift is None else ttnn.add(scaled, shift)


class ModulatedOutput:
    """The last layers (``norm_out``, ``proj_out``): a norm scaled and shifted by the time embedding, then a linear.

    ``bias``: both linears have one.
    """

    def __init__(
        self, weights: Weights, ctx: Context, *, features: int, out_features: int, eps: float, bias: bool = True
    ) -> None:
        self._ctx = ctx
        self._norm = LayerNorm(ctx, features=features, eps=eps)
        self._mod = Linear(weights, ctx, "norm_out.linear", in_features=features, out_features=2 * features, bias=bias)
        self._proj = Linear(weights, ctx, "proj_out", in_features=features, out_features=out_features, bias=bias)

    def __call__(self, x_BNL: ttnn.Tensor, silu_time_BD: ttnn.Tensor) -> ttnn.Tensor:
        """(B, 1, local N, local D) -> (B, 1, local N, out features), gathered over tp on the way."""
        scale, shift = ttnn.chunk(self._mod(silu_time_BD), 2, -1)
        return self._proj(modulate(self._norm(gather_features(self._ctx, x_BNL)), shift, scale))
