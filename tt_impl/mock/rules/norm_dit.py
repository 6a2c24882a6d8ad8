"""Distributed norms of the diffusion transformers, alone and with heads and rotary embedding fused to them.

The statistics of dit_layernorm are [mean | variance], one tile each, the value in its first column.

Legend: N rows, D local columns, H heads, E columns of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tt_impl.mock.rules.collectives import gathered
from tt_impl.mock.rules.heads import split_heads
from tt_impl.mock.rules.norm import affine, check_reciprocals
from tt_impl.mock.rules.norm_distributed import normed_by_moments, normed_by_squares, tiles_of
from tt_impl.mock.rules.registry import Call, across, per_device
from tt_impl.mock.rules.rotary import rotate
from tt_impl.mock.storage.values import Shards


@across("experimental.dit_layernorm_pre_allgather")
def dit_layernorm_pre_allgather(call: Call, input_tensor: Shards, recip_tensor: Shards) -> list[Tensor]:
    check_reciprocals(call, recip_tensor)

    def stats(x: Tensor) -> Tensor:
        return tiles_of(x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True))

    return call.each(stats, input_tensor)


def _normed(x: Tensor, stats: Tensor, epsilon: float, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return affine(normed_by_moments(x, stats, epsilon), weight, bias, lambda values, _: values)


@per_device("experimental.dit_layernorm_post_allgather")
def dit_layernorm_post_allgather(
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    normed: Callable[..., Tensor] = _normed,
) -> Tensor:
    for values in (weight, bias):
        if values is not None and values.ndim == 4 and values.shape[0] > 1:
            raise TypeError("a weight or bias per entry of dim 0 is not known: the op looks for batches in dim 1")
    weight, bias = (None if values is None else _by_row(values, input_tensor) for values in (weight, bias))
    return normed(input_tensor, stats, epsilon, weight, bias)


def _by_row(weight: Tensor, x: Tensor) -> Tensor:
    """Take a weight of the columns, or one per batch entry, a transformer's modulation; of a tile the first row."""
    return weight.reshape(-1) if weight.numel() == x.shape[-1] else weight[..., :1, :]


def _by_head(values: Tensor, x: Tensor) -> Tensor:
    """Cut values of the columns (H*E of them, for all rows or a row each) into those of the heads [B, H, N, E]."""
    _, heads, _, size = x.shape
    return split_heads(values.reshape(1, 1, -1, heads * size), heads)


@per_device("experimental.wan_fused_rmsnorm_pre_allgather")
def wan_fused_rmsnorm_pre_allgather(input_tensor: Tensor) -> Tensor:
    return tiles_of(input_tensor.square().sum(-1, keepdim=True))


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
    """Normalise [1, 1, N, D] over all ranks' columns, as heads [1, H, N, E], rotated if cos and sin are given."""
    normed = affine(normed_by_squares(input_tensor, stats, epsilon), weight, None)
    return _rotated(split_heads(normed, num_heads_per_device), transformation_mat, rope_cos, rope_sin)


def _rotated(x: Tensor, transformation: Tensor | None, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    return x if cos is None else rotate(x, cos, sin, transformation)


def _fused_normed(
    part: Tensor, shards: list[Tensor], weight: Tensor | None, bias: Tensor | None, *, epsilon: float, centred: bool
) -> Tensor:
    """Normalise a device's columns by those of all ``shards``, then scale and shift them."""
    columns = torch.cat(shards, -1)
    mean = columns.mean(-1, keepdim=True) if centred else 0.0
    variance = (columns - mean).square().mean(-1, keepdim=True)
    return affine((part - mean) * torch.rsqrt(variance + epsilon), weight, bias, lambda values, _: values)


@across("experimental.dit_fused_distributed_rmsnorm", "experimental.dit_fused_distributed_layernorm")
def dit_fused_distributed_norm(
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
    reciprocals: Shards | None = None,
    normed: Callable[..., Tensor] = _fused_normed,
    rotated: Callable[..., Tensor] = _rotated,
) -> list[Tensor]:
    """Apply a norm over the columns of all ranks (of each head, if per_head_norm), split into heads, rotate."""
    check_reciprocals(call, reciprocals)
    heads = num_heads_per_device
    whole = gathered(input_tensor, -1, cluster_axis) if cluster_axis is not None else input_tensor

    def of_device(part: Tensor, row: Tensor, weight: Any, bias: Any, transformation: Any, cos: Any, sin: Any) -> Tensor:
        shaped = _by_head if per_head_norm else _by_row
        part = split_heads(part, heads) if per_head_norm else part
        shards = [part] if per_head_norm else list(row.split(part.shape[-1], -1))
        affine = (None if values is None else shaped(values, part) for values in (weight, bias))
        scaled = normed(part, shards, *affine, epsilon=epsilon, centred=call.name.endswith("layernorm"))
        return rotated(scaled if per_head_norm else split_heads(scaled, heads), transformation, cos, sin)

    return call.each(of_device, input_tensor, whole, weight, bias, transformation_mat, rope_cos, rope_sin)
