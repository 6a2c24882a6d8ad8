"""Rotary position embeddings, by a transformation of neighbours or by halves.

Legend: B batch or users, H heads, N tokens, E head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import per_device

TILE = 32


def rotate(x: Tensor, cos: Tensor, sin: Tensor, transformation: Tensor) -> Tensor:
    """x * cos + (x @ T) * sin, T [1, 1, 32, 32] applied to every 32 columns; it swaps neighbours with a sign."""
    tile = transformation.reshape(transformation.shape[-2:])
    parts = x.reshape(*x.shape[:-1], -1, tile.shape[0])
    turned = torch.matmul(parts, tile).reshape(x.shape)
    rows = x.shape[-2]
    return x * cos[..., :rows, :] + turned * sin[..., :rows, :]


@per_device("experimental.rotary_embedding_llama")
def rotary_embedding_llama(
    input_tensor: Tensor, cos_cache: Tensor, sin_cache: Tensor, trans_mat: Tensor, *, is_decode_mode: bool = False
) -> Tensor:
    """[B, H, N, E] by the angles of rows N; in decode mode [1, B, H, E] by those of users: cos and sin [1, B, 1, E]."""
    if is_decode_mode:
        tile = trans_mat[..., :32, :32].reshape(-1, 32, 32)[:1]
        users = cos_cache[:, : input_tensor.shape[1], :1], sin_cache[:, : input_tensor.shape[1], :1]
        return rotate(input_tensor, *users, tile)
    return rotate(input_tensor, cos_cache, sin_cache, trans_mat)


@per_device("experimental.rotary_embedding")
def rotary_embedding(
    input_tensor: Tensor, cos_cache: Tensor, sin_cache: Tensor, token_index: int | None = None
) -> Tensor:
    """The rotate-half form: (x1, x2) * cos + (-x2, x1) * sin. ttnn gives whole tiles of rows; beyond N they are NaN."""
    if token_index is not None:
        raise TypeError("token_index is not known")
    first, second = input_tensor.chunk(2, -1)
    rows = input_tensor.shape[-2]
    turned = torch.cat([-second, first], -1)
    out = input_tensor * cos_cache[..., :rows, :] + turned * sin_cache[..., :rows, :]
    return F.pad(out, (0, 0, 0, -rows % TILE), value=float("nan"))
