"""Group norm of images, channels last, whole or with rows cut over a mesh axis.

Legend: N images, H x W pixels, C channels, G groups of C/G channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tt_impl.mock.rules.collectives import gathered
from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.norm import affine
from tt_impl.mock.rules.registry import TILE, Call, across, per_device
from tt_impl.mock.storage.values import Shards


def normed(
    x: Tensor, groups: int, epsilon: float, weight: Tensor | None, bias: Tensor | None, pixels: Tensor | None = None,
    activation: Any = None,
) -> Tensor:  # fmt: skip
    """Normalise [N, 1, H*W, C] by groups of channels, then scale and shift each channel, then activate.

    Statistics are those of ``pixels``, of all devices, where ``x`` has only some of them.
    """
    by_group = (x if pixels is None else pixels).unflatten(-1, (groups, -1))
    mean = by_group.mean((1, 2, 4), keepdim=True)
    variance = by_group.var((1, 2, 4), correction=0, keepdim=True)
    scaled = ((x.unflatten(-1, (groups, -1)) - mean) * torch.rsqrt(variance + epsilon)).flatten(-2)
    return activate(affine(scaled, weight, bias, lambda values, _: values.reshape(-1)), activation)


@per_device("group_norm", with_call=True)
def group_norm(
    call: Call,
    input_tensor: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-12,
    input_mask: Tensor | None = None,
    negative_mask: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    normed: Callable[..., Tensor] = normed,
) -> Tensor:
    """Normalise [N, 1, H*W, C]; masks tell a device which columns of a tile are of a group, and change nothing."""
    spec = call.argument("input_tensor", 0).memory_config().shard_spec
    chunk = 0 if spec is None else spec.shape[1]
    weight, bias = (_unpadded(values, input_tensor.shape[-1], chunk) for values in (weight, bias))
    _check_channels(input_tensor, weight, bias)
    return normed(input_tensor, num_groups, epsilon, weight, bias)


@across("experimental.dit_fused_distributed_groupnorm")
def dit_fused_distributed_groupnorm(
    call: Call,
    input_tensor: Shards,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    cluster_axis: int,
    input_mask: Shards | None = None,
    weight: Shards | None = None,
    bias: Shards | None = None,
    activation: Any = None,
    normed: Callable[..., Tensor] = normed,
) -> list[Tensor]:
    """Normalise [N, 1, H*W/P, C], pixels cut over the axis, by statistics of all of them, then activate."""
    whole = gathered(input_tensor, 2, cluster_axis)

    def of_device(x: Tensor, pixels: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        _check_channels(x, weight, bias)
        return normed(x, num_groups, epsilon, weight, bias, pixels, activation)

    return call.each(of_device, input_tensor, whole, weight, bias)


def _unpadded(values: Tensor | None, channels: int, chunk: int) -> Tensor | None:
    """Return values of all channels: where ``chunk`` channels lie on a core, each core's begin at a new stick of 32."""
    padded = chunk + -chunk % TILE
    if values is None or not chunk or channels % chunk or values.numel() != channels // chunk * padded:
        return values
    return values.reshape(-1, padded)[:, :chunk].reshape(-1)


def _check_channels(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    """Refuse a weight or bias that is not [C], maybe packed as [1, 1, C/32, 32] in whole tiles."""
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None and values.numel() != x.shape[-1]:
            raise TypeError(f"a {name} of {values.numel()} values for {x.shape[-1]} channels is not known")
