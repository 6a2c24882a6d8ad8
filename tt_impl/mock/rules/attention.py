"""Attention: plain, joint (two streams, the second at the rear), and over a ring of devices.

Legend: B batch, H heads, N tokens (of this device), M tokens of the whole ring, L joint tokens, E head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.collectives import gathered
from tt_impl.mock.rules.heads import join_heads
from tt_impl.mock.rules.registry import Call, across, per_device
from tt_impl.mock.values import Shards

_chosen: Callable[[int], Tensor] | None = None


@contextmanager
def only_rows(choose: Callable[[int], Tensor]) -> Iterator[None]:
    """While it is open, attention without a mask computes the rows of Q that ``choose(rows)`` numbers, no others.

    For sizes whose whole attention would take minutes: rows do not depend on each other. The others are NaN.
    """
    global _chosen
    outer, _chosen = _chosen, choose
    try:
        yield
    finally:
        _chosen = outer


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attention [B, H, N, E]; fewer heads in k and v are shared by groups of heads of q.

    Scores [B, H, N, M] are never laid out whole: torch's fused attention goes block by block if all heads have one
    size, so v is filled up to it, or q and k are. A row that may attend to nothing is NaN.
    """
    scale = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    if q.shape[2] == 0:
        return q.new_zeros(*q.shape[:3], v.shape[-1])
    if k.shape[1] != q.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    size, width = v.shape[-1], max(q.shape[-1], v.shape[-1])
    q, k, v = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    if causal and mask is not None:
        raise TypeError("is_causal and attn_mask exclude each other")
    if _chosen is not None and mask is None and not causal:
        rows = _chosen(q.shape[2])
        out = q.new_full((*q.shape[:3], size), float("nan"))
        out[:, :, rows] = F.scaled_dot_product_attention(q[:, :, rows], k, v, scale=scale)[..., :size]
        return out
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)[..., :size]
    if mask is not None:
        out = out.masked_fill((mask == float("-inf")).all(-1, keepdim=True), float("nan"))
    return out


@per_device("transformer.scaled_dot_product_attention")
def scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = True,
    scale: float | None = None,
    cu_window_seqlens: Tensor | None = None,
    windowed_q_token_offset: int = 0,
    windowed_q_token_offset_tensor: Tensor | None = None,
    output_concat_heads: bool = False,
) -> Tensor:
    """Causal unless told otherwise, as TTNN's default is; or only within windows that begin at ``cu_window_seqlens``.

    With windows, the first row of Q is token ``windowed_q_token_offset`` of K, possibly another one per device.
    """
    mask = attn_mask
    if cu_window_seqlens is not None:
        if windowed_q_token_offset_tensor is not None:
            windowed_q_token_offset = int(windowed_q_token_offset_tensor)
        rows = torch.arange(input_tensor_q.shape[2]) + windowed_q_token_offset
        mask = _windows(rows, torch.arange(input_tensor_k.shape[2]), cu_window_seqlens.flatten(), is_causal)
        is_causal = False
    out = attend(input_tensor_q, input_tensor_k, input_tensor_v, scale=scale, mask=mask, causal=is_causal)
    return join_heads(out).unsqueeze(1) if output_concat_heads else out


def _windows(rows: Tensor, columns: Tensor, ends: Tensor, causal: bool) -> Tensor:
    """The mask [1, 1, N, M] that lets tokens attend to their own window; minus infinity elsewhere."""
    hidden = torch.bucketize(rows, ends, right=True)[:, None] != torch.bucketize(columns, ends, right=True)
    if causal:
        hidden |= columns > rows[:, None]
    return torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))[None, None]


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
) -> list[Tensor]:
    """Every token of both streams attends to all of both: [B, H, N, E] and [B, H, L, E]."""
    _only_rear(joint_strategy)
    spatial = (input_tensor_q, input_tensor_k, input_tensor_v)
    joint = (joint_tensor_q, joint_tensor_k, joint_tensor_v)
    q, k, v = (torch.cat(pair, 2) for pair in zip(spatial, joint, strict=True))
    out = attend(q, k, v, scale=scale)
    return list(out.split([input_tensor_q.shape[2], joint_tensor_q.shape[2]], 2))


def _only_rear(joint_strategy: str) -> None:
    if joint_strategy != "rear":
        raise TypeError(f"joint_strategy '{joint_strategy}' is not known")


@across(
    "transformer.ring_joint_scaled_dot_product_attention",
    "transformer.exp_ring_joint_scaled_dot_product_attention",
)
def ring_joint_scaled_dot_product_attention(
    call: Call,
    input_tensor_q: Shards,
    input_tensor_k: Shards,
    input_tensor_v: Shards,
    joint_tensor_q: Shards | None = None,
    joint_tensor_k: Shards | None = None,
    joint_tensor_v: Shards | None = None,
    *,
    joint_strategy: str,
    logical_n: int,
    logical_l: int = 0,
    scale: float | None = None,
    dim: int = 2,
    cluster_axis: int,
    is_causal: bool = False,
    is_balanced: bool = False,
    is_cross: bool = False,
) -> tuple[list[Tensor], ...]:
    """Tokens are cut over the ring, so K and V [B, H, M, E] are gathered; token ``logical_n`` and later are padding.

    The joint stream is whole on every device (``logical_l`` 0), or cut over the ring too and padded from
    ``logical_l`` on. Returns attention of this device's tokens and of its joint tokens, and ttnn's third output,
    running maxima and sums that are nobody's business: NaN. The persistent buffers hold the gathered K and V then.
    """
    _only_rear(joint_strategy)
    if dim != 2 or is_causal or is_balanced or is_cross or not isinstance(logical_n, int):
        raise call.unsupported("dim other than 2, causal, balanced or cross attention, logical_n as a tensor")
    if logical_n > len(input_tensor_k.groups(cluster_axis)[0]) * input_tensor_k.shape[2]:
        raise call.unsupported(f"logical_n {logical_n}, which is more than the tokens of the ring")
    k_all, v_all = (gathered(x, 2, cluster_axis) for x in (input_tensor_k, input_tensor_v))
    call.written("persistent_output_buffer_k", k_all)
    call.written("persistent_output_buffer_v", v_all)
    has_joint = joint_tensor_q is not None
    joint_k, joint_v = joint_tensor_k, joint_tensor_v
    if has_joint and logical_l:
        if logical_l <= joint_tensor_k.shape[2]:  # ttnn takes it for replicated then, whatever was meant
            raise call.unsupported(f"logical_l {logical_l} of a joint stream of which one device has as many rows")
        joint_k, joint_v = (gathered(x, 2, cluster_axis) for x in (joint_tensor_k, joint_tensor_v))
        call.written("persistent_output_buffer_joint_k", joint_k)
        call.written("persistent_output_buffer_joint_v", joint_v)

    def visible(spatial: Tensor, joint: Tensor | None) -> Tensor:
        """Rows of K or V that queries may see: those of both streams without their padding."""
        rows = spatial[:, :, :logical_n]
        return rows if joint is None else torch.cat([rows, joint[:, :, : logical_l or None]], 2)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, scale=scale)

    k_seen, v_seen = call.each(visible, k_all, joint_k), call.each(visible, v_all, joint_v)
    out = call.each(attention, input_tensor_q, k_seen, v_seen)
    if has_joint:
        rear = call.each(attention, joint_tensor_q, k_seen, v_seen)
    else:
        rear = [torch.zeros(tuple(call.outputs[1].shape))] * len(out)
    scratch = torch.full(tuple(call.outputs[2].shape), float("nan"))
    return out, rear, [scratch] * len(out)
