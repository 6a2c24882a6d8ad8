"""Layer and RMS norms, whole and distributed.

A distributed norm is three steps: ``pre`` makes statistics of the local columns, an all-gather lays the statistics
of all ranks side by side, ``post`` combines them. Statistics are one tile (32 columns) per quantity and rank, the
value in the first column: RMS norm [sum x^2], layer norm [sum x^2 | sum x], dit_layernorm [mean | variance].

Legend: N rows, D local columns, H heads, E columns of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.collectives import gathered
from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.heads import rotate, split_heads
from tt_impl.mock.rules.registry import Call, across, per_device
from tt_impl.mock.values import Shards

TILE = 32


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift the last dim; weights come as [D], [1, 1, 1, D] or, row-major, [1, 1, D/32, 32]."""
    if weight is not None:
        x = x * weight.reshape(-1)
    return x if bias is None else x + bias.reshape(-1)


def _stats(*columns: Tensor) -> Tensor:
    """One tile per quantity [.., N, 1], its value in the tile's first column."""
    return torch.cat([F.pad(column, (0, TILE - 1)) for column in columns], -1)


def _quantities(stats: Tensor, count: int) -> tuple[list[Tensor], int]:
    """``count`` quantities as [.., N, P] over the P ranks whose statistics lie side by side."""
    ranks = stats.shape[-1] // (count * TILE)
    by_rank = stats.reshape(*stats.shape[:-1], ranks, count, TILE)[..., 0]
    return [by_rank[..., i] for i in range(count)], ranks


@per_device("layer_norm")
def layer_norm(
    input_tensor: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual_input_tensor: Tensor | None = None,
) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    return _affine(F.layer_norm(x, x.shape[-1:], eps=epsilon), weight, bias)


@per_device("rms_norm")
def rms_norm(
    input_tensor: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual_input_tensor: Tensor | None = None,
) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    return _affine(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon), weight, bias)


@per_device("experimental.dit_rms_norm_unary_fused")
def dit_rms_norm_unary_fused(
    input_tensor: Tensor,
    epsilon: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual_input_tensor: Tensor | None = None,
    *,
    activation: Any = None,
) -> Tensor:
    normed = rms_norm(
        input_tensor, epsilon=epsilon, weight=weight, bias=bias, residual_input_tensor=residual_input_tensor
    )
    return activate(normed, activation)


@per_device("layer_norm_pre_all_gather")
def layer_norm_pre_all_gather(input_tensor: Tensor, *, residual_input_tensor: Tensor | None = None) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    return _stats(x.square().sum(-1, keepdim=True), x.sum(-1, keepdim=True))


@per_device("layer_norm_post_all_gather")
def layer_norm_post_all_gather(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    (squares, sums), ranks = _quantities(stats, 2)
    columns = ranks * input_tensor.shape[-1]
    mean = sums.sum(-1, keepdim=True) / columns
    variance = squares.sum(-1, keepdim=True) / columns - mean.square()
    return _affine((input_tensor - mean) * torch.rsqrt(variance + epsilon), weight, bias)


@per_device("experimental.dit_layernorm_pre_allgather")
def dit_layernorm_pre_allgather(input_tensor: Tensor, _reciprocals: Tensor | None = None) -> Tensor:
    return _stats(input_tensor.mean(-1, keepdim=True), input_tensor.var(-1, correction=0, keepdim=True))


@per_device("experimental.dit_layernorm_post_allgather")
def dit_layernorm_post_allgather(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    for values in (weight, bias):
        if values is not None and values.ndim == 4 and values.shape[0] > 1:
            raise TypeError("a weight or bias per entry of dim 0 is not known: the op looks for batches in dim 1")
    (means, variances), _ = _quantities(stats, 2)
    mean = means.mean(-1, keepdim=True)
    variance = variances.mean(-1, keepdim=True) + (means - mean).square().mean(-1, keepdim=True)
    return _affine_by_row((input_tensor - mean) * torch.rsqrt(variance + epsilon), weight, bias)


def _affine_by_row(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """As ``_affine``, or with one weight per batch entry ([B, 1, 1, D]): the modulation of a diffusion transformer."""
    if weight is not None:
        x = x * _broadcast(weight, x)
    return x if bias is None else x + _broadcast(bias, x)


def _broadcast(weight: Tensor, x: Tensor) -> Tensor:
    return weight.reshape(-1) if weight.numel() == x.shape[-1] else weight


@per_device("rms_norm_pre_all_gather")
def rms_norm_pre_all_gather(input_tensor: Tensor, *, residual_input_tensor: Tensor | None = None) -> Tensor:
    x = input_tensor if residual_input_tensor is None else input_tensor + residual_input_tensor
    return _stats(x.square().sum(-1, keepdim=True))


@per_device("experimental.wan_fused_rmsnorm_pre_allgather")
def wan_fused_rmsnorm_pre_allgather(input_tensor: Tensor) -> Tensor:
    return rms_norm_pre_all_gather(input_tensor)


@per_device("rms_norm_post_all_gather")
def rms_norm_post_all_gather(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    (squares,), ranks = _quantities(stats, 1)
    mean_square = squares.sum(-1, keepdim=True) / (ranks * input_tensor.shape[-1])
    return _affine(input_tensor * torch.rsqrt(mean_square + epsilon), weight, bias)


@per_device("experimental.wan_fused_rmsnorm_post_allgather")
def wan_fused_rmsnorm_post_allgather(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-5,
    num_heads_per_device: int = 1,
    weight: Tensor | None = None,
    transformation_mat: Tensor | None = None,
    rope_cos: Tensor | None = None,
    rope_sin: Tensor | None = None,
) -> Tensor:
    """[1, 1, N, D] -> normalised over all ranks' columns, as heads [1, H, N, E], rotated if cos and sin are given."""
    normed = rms_norm_post_all_gather(input_tensor, stats, epsilon=epsilon, weight=weight)
    return _heads_and_rope(normed, num_heads_per_device, transformation_mat, rope_cos, rope_sin)


def _heads_and_rope(
    x: Tensor, heads: int, transformation: Tensor | None, cos: Tensor | None, sin: Tensor | None
) -> Tensor:
    x = split_heads(x, heads)
    return x if cos is None else rotate(x, cos, sin, transformation)


@across("experimental.dit_fused_distributed_rmsnorm")
def dit_fused_distributed_rmsnorm(
    call: Call,
    input_tensor: Shards,
    cluster_axis: int | None,
    *_machinery: Any,
    epsilon: float = 1e-5,
    num_heads_per_device: int = 1,
    per_head_norm: bool = False,
    weight: Shards | None = None,
    bias: Shards | None = None,
    transformation_mat: Shards | None = None,
    rope_cos: Shards | None = None,
    rope_sin: Shards | None = None,
) -> list[Tensor]:
    """RMS norm over the columns of all ranks (of each head, if per_head_norm), split into heads, rotated."""
    return _fused(
        call, input_tensor, cluster_axis, False, epsilon, num_heads_per_device, per_head_norm,
        (weight, bias, transformation_mat, rope_cos, rope_sin),
    )  # fmt: skip


@across("experimental.dit_fused_distributed_layernorm")
def dit_fused_distributed_layernorm(
    call: Call,
    input_tensor: Shards,
    cluster_axis: int | None,
    *_machinery: Any,
    epsilon: float = 1e-5,
    num_heads_per_device: int = 1,
    weight: Shards | None = None,
    bias: Shards | None = None,
    transformation_mat: Shards | None = None,
    rope_cos: Shards | None = None,
    rope_sin: Shards | None = None,
) -> list[Tensor]:
    return _fused(
        call, input_tensor, cluster_axis, True, epsilon, num_heads_per_device, False,
        (weight, bias, transformation_mat, rope_cos, rope_sin),
    )  # fmt: skip


def _fused(
    call: Call,
    x: Shards,
    cluster_axis: int | None,
    centre: bool,
    epsilon: float,
    heads: int,
    per_head: bool,
    extras: tuple[Shards | None, ...],
) -> list[Tensor]:
    whole = gathered(x, -1, cluster_axis) if cluster_axis is not None else x

    def normed(part: Tensor, row: Tensor, weight: Any, bias: Any, transformation: Any, cos: Any, sin: Any) -> Tensor:
        if per_head:
            by_head = rms_norm(split_heads(part, heads), epsilon=epsilon)
            by_head = _affine_by_head(by_head, weight, bias)
            return by_head if cos is None else rotate(by_head, cos, sin, transformation)
        mean = row.mean(-1, keepdim=True) if centre else 0.0
        variance = (row - mean).square().mean(-1, keepdim=True)
        scaled = _affine_by_row((part - mean) * torch.rsqrt(variance + epsilon), weight, bias)
        return _heads_and_rope(scaled, heads, transformation, cos, sin)

    return call.each(normed, x, whole, *extras)


def _affine_by_head(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift [B, H, N, E] by E values, the same for all heads, or by H*E."""
    heads, size = x.shape[1], x.shape[3]

    def shaped(values: Tensor) -> Tensor:
        return values.reshape(-1) if values.numel() == size else values.reshape(1, heads, 1, size)

    if weight is not None:
        x = x * shaped(weight)
    return x if bias is None else x + shaped(bias)
