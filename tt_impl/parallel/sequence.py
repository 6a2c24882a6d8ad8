"""Sequence parallel: tokens on the host become a run of consecutive rows on every device of sp.

    host     0 ........ n | n ........ 2n | 2n ...... tokens xxxx
    device   member 0       member 1        member 2        ^^^^ padding, zero: masked as a key, dropped as a query

The prompt is whole on every device, or (``--prompt-layout split``) cut over sp the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
import ttnn

from refsim.base.errors import UserError
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


def valid_prompts(mask_BL: torch.Tensor, *, empty: bool = False) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield runs of samples whose prompts are valid at the same places, and these places (L',), which differ in number.

    ttnn's joint attention takes a prompt's length and no mask. Nobody reads what a masked token comes to, so that the
    answer is the same if a prompt has its valid tokens only, and each run is computed by itself:

        mask    1 1 0 1 0      samples 0, 1   tokens 0 1 3
                1 1 0 1 0
                1 1 1 1 1      sample 2       tokens 0 1 2 3 4

    Args:
        empty: a prompt may have no valid token.

    Raises:
        UserError: no token of a prompt is valid.
    """
    if mask_BL.is_meta:  # all tokens, which take the longest
        yield slice(None), torch.arange(mask_BL.shape[1])
        return
    rows = mask_BL.bool()
    start = 0
    for stop in range(1, len(rows) + 1):
        if stop < len(rows) and torch.equal(rows[stop], rows[start]):
            continue
        tokens = rows[start].nonzero().flatten()
        if not (len(tokens) or empty):
            raise UserError(f"the mask of sample {start} has no valid token; TTNN needs one of every prompt.")
        yield slice(start, stop), tokens
        start = stop


def by_valid_prompts(
    mask_BL: torch.Tensor, forward: Callable[[slice, torch.Tensor], ttnn.Tensor], *, empty: bool = False
) -> ttnn.Tensor:
    """Return what ``forward(samples, places)`` gives for each of :func:`valid_prompts`, joined along the batch."""
    outs = [forward(samples, places_L) for samples, places_L in valid_prompts(mask_BL, empty=empty)]
    return outs[0] if len(outs) == 1 else ttnn.concat(outs, dim=0)


def split_length(ctx: Context, prompt_tokens: int) -> int | None:
    """``logical_l`` of attention: how many tokens a split prompt has without padding; None for a replicated one."""
    return prompt_tokens if ctx.options.splits_prompt else None
