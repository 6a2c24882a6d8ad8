"""Rotary position embeddings, by a transformation of neighbours or by halves.

Legend: B batch or users, H heads, N tokens, E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device
from tt_impl.mock.storage.not_finite import UNWRITTEN


def rotate(x: Tensor, cos: Tensor, sin: Tensor, transformation: Tensor) -> Tensor:
    """Compute x * cos + (x @ T) * sin, T [1, 1, 32, 32] of every 32 columns; it swaps neighbours with a sign."""
    tile = transformation.reshape(transformation.shape[-2:])
    parts = x.reshape(*x.shape[:-1], -1, tile.shape[0])
    turned = torch.matmul(parts, tile).reshape(x.shape)
    rows = x.shape[-2]
    return x * cos[..., :rows, :] + turned * sin[..., :rows, :]


@per_device("experimental.rotary_embedding_llama")
def rotary_embedding_llama(
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    trans_mat: Tensor,
    *,
    is_decode_mode: bool = False,
    rotate: Callable[..., Tensor] = rotate,
) -> Tensor:
    """Turn [B, H, N, E] by the angles of rows N; in decode mode [1, B, H, E] by those of users, [1, B, 1, E]."""
    if is_decode_mode:
        tile = trans_mat[..., :32, :32].reshape(-1, 32, 32)[:1]
        users = cos_cache[:, : input_tensor.shape[1], :1], sin_cache[:, : input_tensor.shape[1], :1]
        return rotate(input_tensor, *users, tile)
    return rotate(input_tensor, cos_cache, sin_cache, trans_mat)


@per_device("experimental.rotary_embedding_llama_fused_qk")
def rotary_embedding_llama_fused_qk(
    q_input_tensor: Tensor,
    k_input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    trans_mat: Tensor,
    **how: Any,
) -> list[Tensor]:
    """Turn one token of B users, [1, B, H, E]; cos and sin are those of all Q's users, then those of all K's."""
    users = q_input_tensor.shape[1]
    parts = (q_input_tensor, 0), (k_input_tensor, users)
    return [
        rotary_embedding_llama(x, cos_cache[:, first:], sin_cache[:, first:], trans_mat, is_decode_mode=True, **how)
        for x, first in parts
    ]


def rotate_by_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute (x1, x2) * cos + (-x2, x1) * sin."""
    return x * cos + rotate_half(x) * sin


@per_device("experimental.rotate_half")
def rotate_half(input: Tensor) -> Tensor:
    """Turn (x1, x2), the halves of the last dim, into (-x2, x1)."""
    first, second = input.chunk(2, -1)
    return torch.cat([-second, first], -1)


@per_device("experimental.rotary_embedding_hf")
def rotary_embedding_hf(
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    is_decode_mode: bool = False,
    rotate_by_halves: Callable[..., Tensor] = rotate_by_halves,
) -> Tensor:
    """Turn [B, H, N, E] by halves, by the angles of rows N; in decode mode [1, B, H, E] by users' [1, B, 1, E]."""
    if is_decode_mode:
        return rotate_by_halves(input_tensor, cos_cache[:, :, :1], sin_cache[:, :, :1])
    rows = input_tensor.shape[-2]
    return rotate_by_halves(input_tensor, cos_cache[..., :rows, :], sin_cache[..., :rows, :])


@per_device("experimental.rotary_embedding", with_call=True)
def rotary_embedding(
    call: Call,
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    token_index: int | None = None,
    rotate_by_halves: Callable[..., Tensor] = rotate_by_halves,
) -> Tensor:
    """Turn by halves, all rows by the angle of ``token_index`` if given. What ttnn gives beyond the rows N is NaN."""
    rows = input_tensor.shape[-2]
    used = slice(rows) if token_index is None else slice(token_index, token_index + 1)
    out = rotate_by_halves(input_tensor, cos_cache[..., used, :], sin_cache[..., used, :])
    return F.pad(out, (0, 0, 0, max(0, call.outputs[0].shape[-2] - rows)), value=UNWRITTEN)
