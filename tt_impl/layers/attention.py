"""Queries, keys and values of a stream, heads cut over tp; and attention of local heads alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.layers.linear import AttentionSizes, ColParallelQKV
from tt_impl.layers.norm import RMSNorm
from tt_impl.layers.rope import PairTables, rotate_pairs
from tt_impl.parallel.context import Context
from tt_impl.parallel.ring import QKV
from tt_impl.parallel.sdpa import local_program_config

HeadNorm = Callable[[ttnn.Tensor], ttnn.Tensor]
"""A norm of every head of (B, local heads, rows, E)."""
RMS_NORM: Callable[..., HeadNorm] = partial(RMSNorm, eps=1e-6)


def turned(qkv: QKV, norms: Sequence[HeadNorm], rotary: PairTables | None) -> QKV:
    """Norm queries and keys, where there are norms, and turn them by their positions, where there are tables."""
    q, k, v = qkv
    if norms:
        q = norms[0](q)
        k = norms[1](k)
    if rotary is not None:
        q = rotate_pairs(q, rotary)
        k = rotate_pairs(k, rotary)
    return q, k, v


class StreamQKV:
    """q, k, v of one stream, (B, local heads, rows, E); q and k normalised per head, then turned by their positions.

    Args:
        names: of the linears of q, k and v.
        norms: names of the norms of q and k; None for none.
        norm: makes such a norm, called with weights, ctx, name and ``features``.
        bias: the linears have one.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        prefix: str,
        sizes: AttentionSizes,
        *,
        names: tuple[str, str, str] = ("to_q", "to_k", "to_v"),
        norms: tuple[str, str] | None = ("norm_q", "norm_k"),
        norm: Callable[..., HeadNorm] = RMS_NORM,
        bias: bool = True,
    ) -> None:
        self._qkv = ColParallelQKV(weights, ctx, tuple(f"{prefix}.{n}" for n in names), sizes, bias=bias)
        self._norms = [norm(weights, ctx, f"{prefix}.{n}", features=sizes.head_dim) for n in norms or ()]

    def __call__(self, x: ttnn.Tensor, rotary: PairTables | None = None) -> QKV:
        """Of ``x`` (B, 1, rows, D), gathered."""
        return turned(self._qkv(x), self._norms, rotary)

    def of_shards(self, x: ttnn.Tensor, rotary: PairTables | None = None) -> QKV:
        """Of ``x`` (B, 1, rows, local D), gathered on the way."""
        return turned(self._qkv.of_shards(x), self._norms, rotary)


def local_attention(ctx: Context, qkv: tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor], **options: Any) -> ttnn.Tensor:
    """Attention in one piece of the local heads to rows that every device has, for short prompts.

    Args:
        qkv: each (B, H, L, E), heads cut over tp.
        options: of ``ttnn.transformer.scaled_dot_product_attention``.

    Returns:
        (B, 1, L, H * E), the heads side by side, as a row-parallel linear wants them.
    """
    return ttnn.transformer.scaled_dot_product_attention(
        *qkv,
        output_concat_heads=True,
        program_config=local_program_config(ctx, qkv[0].shape[2]),
        compute_kernel_config=ctx.sdpa_config,
        **options,
    )
