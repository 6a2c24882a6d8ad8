"""Attention of whole sequences: plain, within windows, latent, and joint (two streams, the second at the rear).

Scores are never laid out whole, so the memory grows with the tokens and not with their square.

Legend: B batch, H heads, N rows of Q, M columns (rows of K and V), L joint tokens, E head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.heads import join_heads
from tt_impl.mock.rules.registry import per_device

Hidden = Callable[[Tensor, Tensor], Tensor]
"""Of row numbers [n, 1] and column numbers [m]: which columns a row may not see."""

BLOCK = 2**25
"""Entries of a mask that are laid out at a time."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None, causal: bool = False,
    hidden: Hidden | None = None, sink: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attend: [B, H, N, E]; fewer heads in k and v are shared by groups of heads of q.

    A row that may attend to nothing is NaN. torch's fused attention goes block by block if all heads have one size,
    so v is filled up to it, or q and k are.

    Args:
        mask: added to the scores, [B or 1, H or 1, N, M].
        causal: row n sees the columns up to n.
        hidden: what a row may not see besides; masks are made of it for some rows at a time.
        sink: a score of every head, [H], scaled like the others, that takes its share and gives nothing.
    """
    scale = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    if q.shape[2] == 0:
        return q.new_zeros(*q.shape[:3], v.shape[-1])
    if causal and mask is not None:
        raise TypeError("is_causal and attn_mask exclude each other")
    size = v.shape[-1]
    k, v = (t if t.shape[1] == q.shape[1] else t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    if sink is not None:
        q, k, v, mask = _with_sink(q, k, v, mask, sink)
    width = max(q.shape[-1], v.shape[-1])
    q, k, v = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    if hidden is None and causal and sink is not None:
        hidden = later
        causal = False
    if hidden is not None:
        if mask is not None or causal:
            raise TypeError("a mask beside a window is not known")
        return _by_rows(q, k, v, scale, hidden, always=sink is not None)[..., :size]
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)[..., :size]
    if mask is not None:
        out = out.masked_fill((mask == float("-inf")).all(-1, keepdim=True), float("nan"))
    return out


def attend_with_scaled_mask(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None, **seen: Any
) -> Tensor:
    """Attend as :func:`attend`, but scale the mask like the scores, as decode and latent prefill do on a device.

    Every kernel scales scores and mask together. ttnn divides the mask of ``scaled_dot_product_attention`` by the scale
    beforehand, not that of the others (tt-metal issues 55333 and 55337): a finite bias loses a factor there.
    """
    scale = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    return attend(q, k, v, scale=scale, mask=None if mask is None else mask * scale, **seen)


def later(rows: Tensor, columns: Tensor) -> Tensor:
    """Hide what comes after a row."""
    return columns > rows


def outside(window: int, causal: bool) -> Hidden:
    """Hide what is not among the last ``window`` columns up to a row, or not within half of it on either side."""
    if causal:
        return lambda rows, columns: (columns > rows) | (columns <= rows - window)
    return lambda rows, columns: (columns - rows).abs() > window // 2


def _with_sink(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sink: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Add a row to K and V: its score is the sink's in the column of ones that Q gets, its value is zero."""
    heads = q.shape[1]
    row = torch.cat([k.new_zeros(heads, k.shape[-1]), sink.reshape(heads, 1)], -1)
    row = row[None, :, None].expand(k.shape[0], -1, -1, -1)
    k = torch.cat([F.pad(k, (0, 1)), row], 2)
    return F.pad(q, (0, 1), value=1.0), k, F.pad(v, (0, 0, 0, 1)), None if mask is None else F.pad(mask, (0, 1))


def _by_rows(q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Hidden, always: bool) -> Tensor:
    """Attend from some rows at a time to the columns that any of them sees; to the last one always if ``always``."""
    columns = torch.arange(k.shape[2] - always)
    step = max(1, BLOCK // max(1, k.shape[2]))
    parts = []
    for start in range(0, q.shape[2], step):
        part = q[:, :, start : start + step]
        seen = ~hidden(torch.arange(start, start + part.shape[2])[:, None], columns).expand(part.shape[2], -1)
        seen = F.pad(seen, (0, int(always)), value=True)
        used = seen.any(0).nonzero().flatten()
        columns_seen = slice(int(used[0]), int(used[-1]) + 1) if used.numel() else slice(1)
        seen = seen[:, columns_seen]
        out = F.scaled_dot_product_attention(part, k[:, :, columns_seen], v[:, :, columns_seen], seen, scale=scale)
        parts.append(out.masked_fill(~seen.any(-1, keepdim=True), float("nan")))
    return torch.cat(parts, 2)


@per_device("transformer.scaled_dot_product_attention")
def scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = True,
    scale: float | None = None,
    sliding_window_size: int | None = None,
    attention_sink: Tensor | None = None,
    cu_window_seqlens: Tensor | None = None,
    windowed_q_token_offset: int = 0,
    windowed_q_token_offset_tensor: Tensor | None = None,
    output_concat_heads: bool = False,
    attend: Callable[..., Tensor] = attend,
) -> Tensor:
    """Attend, causally unless told otherwise, as TTNN does; or within windows that begin at ``cu_window_seqlens``.

    With windows, the first row of Q is token ``windowed_q_token_offset`` of K, possibly another one per device.
    """
    hidden: Hidden | None = None
    if cu_window_seqlens is not None:
        if windowed_q_token_offset_tensor is not None:
            windowed_q_token_offset = int(windowed_q_token_offset_tensor)
        hidden = _windows(cu_window_seqlens.flatten(), windowed_q_token_offset, is_causal)
    elif sliding_window_size:
        hidden = outside(sliding_window_size, is_causal)
    out = attend(
        input_tensor_q, input_tensor_k, input_tensor_v, scale=scale, mask=attn_mask,
        causal=is_causal and hidden is None, hidden=hidden, sink=attention_sink,
    )  # fmt: skip
    return join_heads(out).unsqueeze(1) if output_concat_heads else out


def _windows(ends: Tensor, first: int, causal: bool) -> Hidden:
    """Hide what is not in the window of a row; the first row is token ``first``."""

    def hidden(rows: Tensor, columns: Tensor) -> Tensor:
        rows = rows + first
        other = torch.bucketize(rows, ends, right=True) != torch.bucketize(columns, ends, right=True)
        return other | (columns > rows) if causal else other

    return hidden


@per_device("transformer.flash_mla_prefill")
def flash_mla_prefill(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    values: Tensor | int | None = None,
    *,
    input_tensor_v: Tensor | None = None,
    head_dim_v: int | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = True,
    scale: float | None = None,
    attend: Callable[..., Tensor] = attend_with_scaled_mask,
) -> Tensor:
    """Attend with latent attention: V is a tensor of its own, or the first ``head_dim_v`` columns of K."""
    v = latent_values(input_tensor_k, next(x for x in (values, input_tensor_v, head_dim_v) if x is not None))
    return attend(input_tensor_q, input_tensor_k, v, scale=scale, mask=attn_mask, causal=is_causal)


def latent_values(k: Tensor, v: Tensor | int) -> Tensor:
    """Return V itself, or so many columns of K."""
    return v if isinstance(v, Tensor) else k[..., :v]


def attend_jointly(q: Tensor, segments: list[tuple[Tensor, Tensor]], scale: float | None) -> Tensor:
    """Attend from every row of Q to all rows of all (K, V)."""
    k, v = (torch.cat(parts, 2) for parts in zip(*segments, strict=True))
    return attend(q, k, v, scale=scale)


@per_device("transformer.joint_scaled_dot_product_attention")
def joint_scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    joint_tensor_q: Tensor,
    joint_tensor_k: Tensor,
    joint_tensor_v: Tensor,
    *,
    joint_strategy: str,
    scale: float | None = None,
    attend_jointly: Callable[..., Tensor] = attend_jointly,
) -> list[Tensor]:
    """Attend from every token of both streams to all of both: [B, H, N, E] and [B, H, L, E]."""
    q = torch.cat([input_tensor_q, joint_tensor_q], 2)
    segments = [(input_tensor_k, input_tensor_v), (joint_tensor_k, joint_tensor_v)]
    out = attend_jointly(q, segments, scale)
    return list(out.split([input_tensor_q.shape[2], joint_tensor_q.shape[2]], 2))
