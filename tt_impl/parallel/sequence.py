"""Sequence parallel: tokens on the host become a run of consecutive rows on every device of sp.

    host     0 ........ n | n ........ 2n | 2n ...... tokens xxxx
    device   member 0       member 1        member 2        ^^^^ padding, zero: masked as a key, dropped as a query

The prompt is whole on every device, or (``--prompt-layout split``) cut over sp the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
import ttnn

from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_prompt, padded_tokens


def put_tokens(
    ctx: Context,
    x_BND: torch.Tensor,
    *,
    tp_dim: int | None = None,
    dtype: ttnn.DataType | None = None,
    pad: Callable[[int, int], int] = padded_tokens,
) -> ttnn.Tensor:
    """(B, N, D) on the host -> (B, 1, local N, D), cut over sp; with ``tp_dim`` 3 features are cut over tp too."""
    rows = x_BND.shape[1]
    padded = F.pad(x_BND, (0, 0, 0, pad(rows, ctx.sp) - rows))
    return ctx.put(padded[:, None], sp_dim=2, tp_dim=tp_dim, dtype=dtype)


def put_prompt(ctx: Context, x_BLD: torch.Tensor, *, tp_dim: int | None = None) -> ttnn.Tensor:
    """(B, L, D) on the host -> (B, 1, L, D) on every device, or (B, 1, local L, D) where the prompt is split."""
    if ctx.options.splits_prompt:
        return put_tokens(ctx, x_BLD, tp_dim=tp_dim, pad=padded_prompt)
    return ctx.put(x_BLD[:, None], tp_dim=tp_dim)


def split_length(ctx: Context, prompt_tokens: int) -> int | None:
    """``logical_l`` of attention: how many tokens a split prompt has without padding; None for a replicated one."""
    return prompt_tokens if ctx.options.splits_prompt else None
