"""Softmax, alone and fused with a scale and a mask, as attention uses it.

Legend: B batch, H heads, N rows, M columns (those that are normalised).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import ttnn
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device


def normalised(x: Tensor, dim: int, stable: bool) -> Tensor:
    """Apply softmax; unless it is ``stable``, exponentials past 88 are infinite, and the result is NaN."""
    if stable:
        return torch.softmax(x, dim)
    powers = x.exp()
    return powers / powers.sum(dim, keepdim=True)


@per_device("softmax", "softmax_in_place")
def softmax(
    input_tensor: Tensor, dim: int = -1, *, numeric_stable: bool = True, normalised: Callable[..., Tensor] = normalised
) -> Tensor:
    """Over another dim than the last one it is stable whatever is asked."""
    return normalised(input_tensor, dim, numeric_stable or dim % input_tensor.dim() < input_tensor.dim() - 1)


def masked_softmax(x: Tensor, scale: float | None, mask: Tensor | None, by_row: bool, stable: bool = True) -> Tensor:
    """Apply softmax(scale * x + mask) over the last dim; :func:`mask_of` says which part of ``mask`` counts."""
    x = x if scale is None else x * scale
    return normalised(x if mask is None else x + mask_of(mask, x, by_row), -1, stable)


def mask_of(mask: Tensor, x: Tensor, by_row: bool) -> Tensor:
    """Return the mask of ``x``: it has a row for each, or one for all.

    A mask with a row each may be that of one head, where ``x`` has the rows of several after each other.
    """
    if not by_row:
        return mask[..., :1, :]
    if mask.shape[-2] == x.shape[-2]:
        return mask
    if x.shape[-2] % mask.shape[-2]:
        raise TypeError(f"a mask of {mask.shape[-2]} rows for {x.shape[-2]} rows is not known")
    return mask.repeat(*[1] * (mask.dim() - 2), x.shape[-2] // mask.shape[-2], 1)


@per_device(
    "scale_mask_softmax", "scale_mask_softmax_in_place", "scale_causal_mask_hw_dims_softmax_in_place", with_call=True
)
def scale_mask_softmax(
    call: Call,
    input_tensor: Tensor,
    scale: float | None = None,
    mask: Tensor | None = None,
    *,
    is_causal_mask: bool = False,
    numeric_stable: bool | None = None,
    masked_softmax: Callable[..., Tensor] = masked_softmax,
) -> Tensor:
    """Apply softmax(scale * x + mask) to [B, H, N, M], numerically stable by default unless it is in place.

    A causal mask is [B, 1, N, M] (or of a part of N that is repeated), any other one row for all: [B, 1, 1, M], the
    first row of a tile, or in row-major layout [B, 1, M/32, 32].
    """
    laid_out = call.argument("mask", 2)
    causal = is_causal_mask or "causal" in call.name
    by_row = causal or (laid_out is not None and laid_out.is_sharded())
    stable = numeric_stable if numeric_stable is not None else not call.name.endswith("in_place")
    if mask is not None and laid_out.layout == ttnn.ROW_MAJOR_LAYOUT:
        mask = mask.reshape(mask.shape[0], *[1] * (input_tensor.dim() - 2), input_tensor.shape[-1])
    return masked_softmax(input_tensor, scale, mask, by_row, stable)


@per_device("transformer.attention_softmax", "transformer.attention_softmax_")
def attention_softmax(
    tensor: Tensor,
    *,
    head_size: int | None = None,
    attention_mask: Tensor | None = None,
    causal_mask: bool = False,
    masked_softmax: Callable[..., Tensor] = masked_softmax,
) -> Tensor:
    """Apply softmax(x / sqrt(head_size) + mask)."""
    scale = None if head_size is None else 1 / math.sqrt(head_size)
    return masked_softmax(tensor, scale, attention_mask, by_row=causal_mask)
