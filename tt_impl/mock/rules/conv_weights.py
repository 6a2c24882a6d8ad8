"""Weights as ttnn prepares them for a convolution: once, to be used by many calls.

The order in which ttnn lays prepared weights out is its own, and depends on how it cuts the work. Here a weight
[A, B, K, L] is stored as [1, 1, K*L*B, A], filled up to ttnn's shape, which every convolution reads back. Nobody else
can make sense of a prepared weight, neither here nor on a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device
from tt_impl.mock.storage.dtypes import round_to
from tt_impl.mock.storage.values import Shards


def as_rows(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Turn [A, B, K, L] into [1, 1, K*L*B, A], unless it is prepared. A weight of conv1d may lack a dim of size 1."""
    if weight.dim() == 3 and (*weight.shape[:2], 1, *weight.shape[2:]) == shape:
        weight = weight.unsqueeze(2)
    if tuple(weight.shape) != shape:
        return weight
    return weight.permute(2, 3, 1, 0).reshape(1, 1, -1, shape[0])


def stored_as(rows: Tensor, dtype: Any) -> Tensor:
    """Round weights as ttnn stores them once prepared, if a dtype for that is given."""
    return rows if dtype is None else round_to(rows, dtype).float()


def weight_of(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the weight as torch has it, [A, B, K, L], from its rows."""
    first, second, height, width = shape
    rows = height * width * second
    if tuple(weight.shape[:2]) != (1, 1) or weight.shape[2] < rows or weight.shape[3] < first:
        raise TypeError(f"a weight of shape {tuple(weight.shape)} where {shape} is expected")
    return weight[0, 0, :rows, :first].reshape(height, width, second, first).permute(3, 2, 0, 1)


def _filled_up(call: Call, value: Tensor, output: int) -> Tensor:
    """Return ``value`` with zeros behind it, in the shape of an output."""
    padding: list[int] = []
    for have, want in zip(reversed(value.shape), reversed(tuple(call.outputs[output].shape)), strict=True):
        if want < have:
            raise call.unsupported(f"{tuple(value.shape)} prepared as {tuple(call.outputs[output].shape)}")
        padding += [0, want - have]
    return F.pad(value, padding)


def plain(weight: Tensor, shape: tuple[int, ...], mirrored: bool | None) -> Tensor:
    """Turn a weight as its owner has it into [A, B, K, L].

    That of a transposed convolution is [B, A, K, L], and ``mirrored`` says whether its kernel was; None for others.
    """
    if mirrored is None or weight.dim() != 4 or tuple(weight.transpose(0, 1).shape) != shape:
        return weight
    weight = weight.transpose(0, 1)
    return weight.flip(2, 3) if mirrored else weight


def prepared_weights(
    call: Call, weight: Tensor, shape: tuple[int, ...], output: int, mirrored: bool | None = None
) -> Tensor:
    """Prepare a weight as an output of the operation."""
    return _filled_up(call, as_rows(plain(weight.float(), shape, mirrored), shape), output)


def prepared_bias(call: Call, bias: Tensor, out_channels: int, output: int) -> Tensor:
    """Prepare a bias of any rank as an output of the operation."""
    return _filled_up(call, bias.float().reshape(1, 1, 1, -1)[..., :out_channels], output)


_ELSEWHERE = frozenset(
    """
    batch_size dilation dram_slice_config has_bias input_dtype input_height input_layout input_memory_config input_width
    output_padding padding stride weights_format groups in_channels kernel_size
    """.split()
)
"""What the preparation is told of the convolution, which says it again when it uses the result."""


@per_device("prepare_conv_weights", "prepare_conv_transpose2d_weights", with_call=True)
def prepare_conv_weights(
    call: Call,
    *,
    weight_tensor: Tensor,
    in_channels: int,
    out_channels: int,
    kernel_size: Sequence[int],
    groups: int = 1,
    mirror_kernel: bool = True,
    **rest: Any,
) -> Tensor:
    """Prepare [O, C/groups, K, L], or [C, O/groups, K, L] of a transposed one, from the host or a device."""
    call.check_named(rest, _ELSEWHERE)
    sizes = in_channels, out_channels, groups, kernel_size
    shape, mirrored = weight_layout(call, weight_tensor, *sizes, mirror_kernel)
    return prepared_weights(call, weight_tensor, shape, 0, mirrored)


def weight_layout(
    call: Call,
    weight: Shards | Tensor,
    in_channels: int,
    out_channels: int,
    groups: int,
    kernel_size: Sequence[int],
    mirror_kernel: bool,
) -> tuple[tuple[int, ...], bool | None]:
    """Return [A, B, K, L] of a convolution's weight, and of a transposed one whether its owner has it mirrored.

    A weight may lack the last of the image's channels: ttnn fills it up with zeros.
    """
    if "transpose" in call.name:
        return (out_channels // max(groups, 1), in_channels, *kernel_size), not mirror_kernel
    if groups > 1:
        return (out_channels, in_channels // groups, *kernel_size), None
    channels = weight.shape[1]
    if tuple(weight.shape[:2]) == (1, 1) and tuple(weight.shape[2:]) != tuple(kernel_size):  # a prepared one
        channels, left_over = divmod(weight.shape[2], math.prod(kernel_size))
        channels = in_channels if left_over else channels
    return (out_channels, min(channels, in_channels), *kernel_size), None


@per_device("prepare_conv_bias", "prepare_conv_transpose2d_bias", with_call=True)
def prepare_conv_bias(call: Call, *, bias_tensor: Tensor, out_channels: int, **rest: Any) -> Tensor:
    """Prepare [1, 1, 1, O], from the host or a device."""
    call.check_named(rest, _ELSEWHERE)
    return prepared_bias(call, bias_tensor, out_channels, 0)
