"""Layer, RMS and batch norms of what one device holds, and the normalisation of images.

Legend: N rows, D columns.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.registry import Call, across, per_device
from tt_impl.mock.values import Shards

TILE = 32


def affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift the last dim; weights come as [D], [1, 1, 1, D] or, row-major, [1, 1, D/32, 32], D rounded up."""
    if weight is not None:
        x = x * _row(weight, x.shape[-1])
    return x if bias is None else x + _row(bias, x.shape[-1])


def _row(values: Tensor, size: int) -> Tensor:
    """``size`` values, without what fills the last stick of 32."""
    row = values.reshape(-1)
    if values.shape[-1] == TILE and row.numel() == size + -size % TILE:
        return row[:size]
    if row.numel() != size:
        raise TypeError(f"a weight or bias of {row.numel()} values for {size} columns is not known")
    return row


def rms(x: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


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
    return affine(F.layer_norm(x, x.shape[-1:], eps=epsilon), weight, bias)


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
    return affine(rms(x, epsilon), weight, bias)


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


@across("batch_norm")
def batch_norm(
    call: Call,
    input: Shards,
    *,
    running_mean: Shards | None = None,
    running_var: Shards | None = None,
    training: bool = False,
    eps: float = 1e-05,
    momentum: float = 0.1,
    weight: Shards | None = None,
    bias: Shards | None = None,
    output: Shards | None = None,
) -> list[Tensor]:
    """[N, C, H, W] by the statistics of every channel, [1, C, 1, 1]: those given, or in training its own.

    Training moves the running statistics by ``momentum`` towards the batch's, the variance without correction.
    """
    if training:
        means = call.each(lambda x: x.mean((0, 2, 3), keepdim=True), input)
        variances = call.each(lambda x: x.var((0, 2, 3), correction=0, keepdim=True), input)
    elif running_mean is None or running_var is None:
        raise call.unsupported("evaluation without running_mean and running_var")
    else:
        means, variances = ([held[i] for i in range(len(held))] for held in (running_mean, running_var))

    def normed(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        x = (x - mean) * torch.rsqrt(variance + eps)
        x = x if weight is None else x * weight
        return x if bias is None else x + bias

    def moved(running: Tensor, batch: Tensor) -> Tensor:
        return (1 - momentum) * running + momentum * batch

    result = call.each(normed, input, means, variances, weight, bias)
    if training:
        for name, running, batch in (("mean", running_mean, means), ("var", running_var, variances)):
            if running is not None:
                call.written(f"running_{name}", call.each(moved, running, batch))
    return result
