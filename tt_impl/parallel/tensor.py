"""Tensor parallel after Megatron: the two collectives around a column / row pair.

residual, features cut --all_gather--> column-parallel, activation, row-parallel --reduce_scatter--> features cut
"""

from __future__ import annotations

import ttnn

from tt_impl.parallel.context import Context


def gather_features(ctx: Context, x: ttnn.Tensor) -> ttnn.Tensor:
    """Features cut over tp -> all of them, padded features included, on every device."""
    return x if ctx.tp == 1 else ctx.ccl.all_gather(x, dim=3, axis=ctx.tp_axis)


def reduce_scatter_features(ctx: Context, x: ttnn.Tensor) -> ttnn.Tensor:
    """Partial sums over tp -> their sum, features cut over tp."""
    return x if ctx.tp == 1 else ctx.ccl.reduce_scatter(x, dim=3, axis=ctx.tp_axis)
