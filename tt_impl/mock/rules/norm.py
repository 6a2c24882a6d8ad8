"""Layer, RMS and batch norms of what one device holds, and the normalisation of images.

Legend: N rows, D columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.registry import TILE, Call, across, columns, per_device
from tt_impl.mock.storage.values import Shards


def row(values: Tensor, x: Tensor) -> Tensor:
    """Return a value for each column of ``x``, without what fills the last stick of 32.

    Of values that are a whole row of tiles, [TILE, D], a device reads the first row.
    """
    size = x.shape[-1]
    if values.shape[-2:] == (TILE, size) and values.numel() == TILE * size:
        return values.reshape(TILE, size)[0]
    flat = values.reshape(-1)
    if values.shape[-1] == TILE and flat.numel() == size + -size % TILE:
        return flat[:size]
    if flat.numel() != size:
        raise TypeError(f"a weight or bias of {flat.numel()} values for {size} columns is not known")
    return flat


def affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, shaped: Callable[[Tensor, Tensor], Tensor] = row
) -> Tensor:
    """Scale and shift ``x`` by what ``shaped(weight, x)`` makes of each.

    By default the last dim: weights come as [D], [1, 1, 1, D] or, row-major, [1, 1, D/32, 32], D rounded up.
    """
    if weight is not None:
        x = x * shaped(weight, x)
    return x if bias is None else x + shaped(bias, x)


def rms(x: Tensor, epsilon: float, row: Tensor | None = None) -> Tensor:
    """Apply RMS norm; ``row`` are the columns whose mean square counts, where ``x`` has only some of them."""
    return x * torch.rsqrt((x if row is None else row).square().mean(-1, keepdim=True) + epsilon)


def check_reciprocals(call: Call, table: Shards | None) -> None:
    """Refuse a table for Welford's method that is not 1/1, 1/2, ... of as many columns as a core has.

    ttnn takes a table of any width and content, and a device computes with what it finds there, or behind it.
    """
    if table is None:
        return
    source = call.argument("input_tensor", 0)
    width = table.shape[-1]
    spec = source.memory_config().shard_spec
    columns = source.shape[-1] if spec is None else spec.shape[1]
    right = 1 / torch.arange(1, width + 1)
    if width < columns or not all(torch.allclose(rows, right.expand_as(rows), 2**-8) for rows in table):
        raise call.unsupported(f"a table of {width} reciprocals that is not 1/1, 1/2, ... 1/{columns}")


def normed(
    x: Tensor, epsilon: float, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, centred: bool,
    activation: Any = None,
) -> Tensor:  # fmt: skip
    """Apply layer norm (``centred``) or RMS norm to the sum with a residual, then an activation."""
    x = x if residual is None else x + residual
    whole = affine(F.layer_norm(x, x.shape[-1:], eps=epsilon) if centred else rms(x, epsilon), weight, bias)
    return activate(whole, activation)


@across("layer_norm", "rms_norm")
def layer_norm(
    call: Call,
    input_tensor: Shards,
    *,
    epsilon: float = 1e-12,
    weight: Shards | None = None,
    bias: Shards | None = None,
    residual_input_tensor: Shards | None = None,
    recip_tensor: Shards | None = None,
    normed: Callable[..., Tensor] = normed,
) -> list[Tensor]:
    check_reciprocals(call, recip_tensor)
    centred = call.name == "ttnn.layer_norm"
    return call.each(normed, input_tensor, epsilon, weight, bias, residual_input_tensor, centred)


@per_device("experimental.dit_rms_norm_unary_fused")
def dit_rms_norm_unary_fused(
    input_tensor: Tensor,
    epsilon: float = 1e-5,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual_input_tensor: Tensor | None = None,
    *,
    activation: Any = None,
    normed: Callable[..., Tensor] = normed,
) -> Tensor:
    return normed(input_tensor, epsilon, weight, bias, residual_input_tensor, False, activation)


def _channel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance, without correction, of the channels of [N, C, H, W]: [1, C, 1, 1]."""
    return x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)


def _batch_normed(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> Tensor:
    return affine((x - mean) * torch.rsqrt(variance + epsilon), weight, bias, lambda channels, _: channels)


def _moved(running: Tensor, batch: Tensor, momentum: float) -> Tensor:
    return (1 - momentum) * running + momentum * batch


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
    moments: Callable[..., tuple[Tensor, Tensor]] = _channel_moments,
    normed: Callable[..., Tensor] = _batch_normed,
    moved: Callable[..., Tensor] = _moved,
) -> list[Tensor]:
    """Normalise [N, C, H, W] by the statistics of every channel, [1, C, 1, 1]: those given, or in training its own.

    Training moves the running statistics by ``momentum`` towards the batch's, the variance without correction.
    """
    if training:
        means, variances = columns(call.each(moments, input))
    else:
        means, variances = map(list, (running_mean, running_var))
    result = call.each(normed, input, means, variances, weight, bias, eps)
    if training:
        for name, running, batch in (("mean", running_mean, means), ("var", running_var, variances)):
            if running is not None:
                call.written(f"running_{name}", call.each(moved, running, batch, momentum))
    return result
