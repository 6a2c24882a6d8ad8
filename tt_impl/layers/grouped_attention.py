"""Attention of few key-value heads shared by groups of query heads, heads cut over tp.

    query heads   0 1 2 3 4 5 6 7      8 query heads on 2 key-value heads, tp 4
    kv heads      0 0 0 0 1 1 1 1
    device        0 0 1 1 2 2 3 3      devices 0 and 1 both hold kv head 0

TTNN's attention takes bf16 only: queries are rounded to it here, keys and values by the cache.

Legend: B batch, 1; H query heads and G key-value heads of a device; N new rows, S all rows; E features of a head.
"""

from __future__ import annotations

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from tt_impl.layers.linear import check_head_dim
from tt_impl.parallel.context import Context

_HIDDEN = -1e9
"""Added to the scores of rows that must not be seen; bf16 and finite, so that a row of nothing else is no NaN."""


class GroupedQKV:
    """q, k, v of whole heads as one linear without bias; a device's columns are ``[its q | its k | its v]``.

    Args:
        tp: number of devices the heads are cut over; 1 leaves all heads on every device.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        prefix: str,
        *,
        features: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        tp: int,
    ) -> None:
        check_head_dim(head_dim)
        if heads % tp or (kv_heads % tp and tp % kv_heads):
            raise UserError(f"tp{tp} cannot split {heads} heads with {kv_heads} key-value heads.")
        self._ctx = ctx
        self._heads = heads // tp
        self._kv_heads = max(1, kv_heads // tp)
        q, k, v = (
            weights.take(f"{prefix}.{n}_proj.weight", (count * head_dim, features)).unflatten(0, (count, head_dim))
            for n, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        rows = []
        for device in range(tp):
            mine = slice(device * self._heads, (device + 1) * self._heads)
            first = mine.start * kv_heads // heads
            shared = slice(first, first + self._kv_heads)
            rows += [q[mine], k[shared], v[shared]]
        self._weight = _columns(ctx, rows, cut=tp > 1)
        self._kv_weight = None if tp > 1 else _columns(ctx, [k, v], cut=False)

    def __call__(self, x: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]:
        """(1, 1, N, D), whole -> q (1, local heads, N, E), k and v (1, local kv heads, N, E)."""
        qkv = ttnn.linear(x, self._weight, compute_kernel_config=self._ctx.linear_config)
        return ttnn.experimental.nlp_create_qkv_heads(
            qkv, num_heads=self._heads, num_kv_heads=self._kv_heads, transpose_k_heads=False
        )

    def keys_values(self, x: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """(1, 1, N, D) -> k and v alone; heads that are cut have no such half."""
        kv = ttnn.linear(x, self._kv_weight, compute_kernel_config=self._ctx.linear_config)
        rows = kv.shape[2]
        width = kv.shape[3] // 2
        return tuple(
            ttnn.permute(ttnn.reshape(half, (1, rows, self._kv_heads, -1)), (0, 2, 1, 3))
            for half in (kv[:, :, :, :width], kv[:, :, :, width:])
        )


def _columns(ctx: Context, heads: list[torch.Tensor], *, cut: bool) -> ttnn.Tensor:
    """Heads (n, E, D), one after the other as columns (1, 1, D, n * E)."""
    return ctx.put(torch.cat(heads).flatten(0, 1).t()[None, None], tp_dim=3 if cut else None)


def causal_mask(ctx: Context, rows: int, keys: int) -> ttnn.Tensor | None:
    """Make the mask (1, 1, rows, keys) in bf16 that is added to scores, None for a single row, which attends to all.

    The last ``rows`` of all ``keys`` rows attend to the rows up to their own, and never to what fills up the last tile.
    """
    if rows == 1:
        return None
    ahead = torch.ones(rows, keys).triu(keys - rows + 1)
    return ctx.put((ahead * _HIDDEN)[None, None], dtype=ttnn.bfloat16, padding=_HIDDEN)


def grouped_attention(
    ctx: Context, query_BHNE: ttnn.Tensor, key_BGSE: ttnn.Tensor, value_BGSE: ttnn.Tensor, *, mask: ttnn.Tensor | None
) -> ttnn.Tensor:
    """Local heads' attention (1, 1, N, H * E); keys and values are bf16, without a mask every row sees all rows."""
    out = ttnn.transformer.scaled_dot_product_attention(
        ttnn.typecast(query_BHNE, ttnn.bfloat16),
        key_BGSE,
        value_BGSE,
        is_causal=False,
        attn_mask=mask,
        compute_kernel_config=ctx.sdpa_config,
    )
    return ttnn.typecast(ttnn.experimental.nlp_concat_heads(out), ctx.dtype)
