"""Convolution, channels last.

Legend: N images or videos of D frames, H x W pixels, C channels, O output channels, K x L kernel (J x K x L over
frames). ttnn may hand back prepared weights of conv2d, in an order of its own, and takes them at the next call; here
they are [1, 1, K*L*C, O], filled up to ttnn's shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.registry import Call, across
from tt_impl.mock.values import Shards, round_to


@across("conv2d")
def conv2d(
    call: Call,
    *,
    input_tensor: Shards,
    weight_tensor: Shards | Tensor,
    in_channels: int,
    out_channels: int,
    batch_size: int,
    input_height: int,
    input_width: int,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    bias_tensor: Shards | Tensor | None = None,
    return_output_dim: bool = False,
    return_weights_and_bias: bool = False,
) -> tuple[list[Tensor], ...]:
    """[1, 1, N*H*W, C] (or [N, H, W, C]) and weights [O, C/groups, K, L] -> [1, 1, N*H'*W', O]."""
    top, bottom, left, right = padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    weight_shape = (out_channels, in_channels // groups, *kernel_size)
    config = call.kwargs.get("conv_config")
    activation, dtype = getattr(config, "activation", None), getattr(config, "weights_dtype", None)
    replicated = getattr(getattr(config, "padding_mode", None), "name", "") == "Replicate"
    mode = "replicate" if replicated else "constant"

    def convolved(image: Tensor, given: Tensor, bias: Tensor | None) -> Tensor:
        x = image.reshape(batch_size, input_height, input_width, -1)[..., :in_channels].permute(0, 3, 1, 2)
        bias = None if bias is None else _held(bias.float().reshape(1, 1, 1, -1), dtype).reshape(-1)[:out_channels]
        weight = _weight(_held(_as_rows(given.float(), weight_shape), dtype), weight_shape)
        x = F.pad(x, (left, right, top, bottom), mode)
        y = F.conv2d(x, weight, bias, tuple(stride), 0, tuple(dilation), groups)
        return activate(y.permute(0, 2, 3, 1).reshape(1, 1, -1, out_channels), activation)

    outputs = call.each(convolved, input_tensor, weight_tensor, bias_tensor)
    if not return_weights_and_bias:
        return (outputs,)

    def weights(given: Tensor) -> Tensor:
        return _fill_up(_as_rows(given.float(), weight_shape), tuple(call.outputs[1].shape))

    def biases(given: Tensor) -> Tensor:
        return _fill_up(given.float().reshape(1, 1, 1, -1)[..., :out_channels], tuple(call.outputs[2].shape))

    prepared = [call.each(weights, weight_tensor)]
    if bias_tensor is not None:
        prepared.append(call.each(biases, bias_tensor))
    return (outputs, *prepared)


def _rows(weight: Tensor, block: int, alignment: int) -> Tensor:
    """Weights [O, C, J, K, L] as conv3d multiplies by them, [J*K*L*C, O]: C filled up to ``alignment``, cut in blocks
    (0: one) that come first."""
    weight = F.pad(weight.permute(2, 3, 4, 1, 0), (0, 0, 0, -weight.shape[1] % alignment))
    blocks = weight.unflatten(3, (-1, block or weight.shape[3]))
    return blocks.permute(3, 0, 1, 2, 4, 5).flatten(0, 4)


@across("experimental.prepare_conv3d_weights")
def prepare_conv3d_weights(
    call: Call, *, weight_tensor: Shards | Tensor, groups: int = 1, C_in_block: int = 0, alignment: int = 32
) -> list[Tensor]:
    """From the host, or from a device."""
    return call.each(lambda weight: _rows(_dense(weight.float(), groups), C_in_block, alignment), weight_tensor)


@across("experimental.conv3d")
def conv3d(
    call: Call,
    *,
    input_tensor: Shards,
    weight_tensor: Shards,
    bias_tensor: Shards | None = None,
    output_channels: int,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    padding_mode: str = "zeros",
    groups: int = 1,
) -> list[Tensor]:
    """[N, D, H, W, C] -> [N, D', H', W', O]; weights as ``prepare_conv3d_weights`` gives them, or [O, C, J, K, L]."""
    config = call.kwargs.get("config")
    if tuple(getattr(config, "dilation", None) or dilation) not in ((1, 1, 1), tuple(dilation)):
        raise call.unsupported("a dilation in the config that is not the call's")
    block = config.C_in_block if config is not None else 0

    def convolved(video: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = video.permute(0, 4, 1, 2, 3)
        if weight.dim() == 5:
            weight = _dense(weight, groups)
        else:
            channels = weight.shape[-2] // math.prod(kernel_size)
            blocks = weight.reshape(-1, *kernel_size, block or channels, weight.shape[-1])
            weight = blocks.permute(5, 0, 4, 1, 2, 3).flatten(1, 2)[:, : x.shape[1]]
        sides = [side for pad in reversed(list(padding)) for side in (pad, pad)]
        x = F.pad(x, sides, mode="constant" if padding_mode == "zeros" else padding_mode)
        if bias is not None:
            bias = bias.reshape(-1, bias.shape[-1])[0, :output_channels]
        y = F.conv3d(x, weight[:output_channels], bias, tuple(stride), 0, tuple(dilation))
        return y.permute(0, 2, 3, 4, 1)

    return call.each(convolved, input_tensor, weight_tensor, bias_tensor)


def _dense(weight: Tensor, groups: int) -> Tensor:
    """[O, C/groups, J, K, L] -> [O, C, J, K, L]: zero where an output channel does not see an input channel."""
    if groups == 1:
        return weight
    own = weight.shape[1]
    before = [(0, 0, 0, 0, 0, 0, i * own, (groups - 1 - i) * own) for i in range(groups)]
    return torch.cat([F.pad(part, sides) for part, sides in zip(weight.chunk(groups), before, strict=True)])


def _as_rows(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[O, C, K, L] -> [1, 1, K*L*C, O], as ttnn prepares it; a prepared one as it is."""
    if tuple(weight.shape) != shape:
        return weight
    return weight.permute(2, 3, 1, 0).reshape(1, 1, -1, shape[0])


def _held(rows: Tensor, dtype: Any) -> Tensor:
    """Weights as ttnn keeps them once prepared, if a dtype for that is given."""
    return rows if dtype is None else round_to(rows, dtype).float()


def _weight(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The weight as torch has it, from that or from the prepared form."""
    out_channels, channels, height, width = shape
    if tuple(weight.shape) == shape:
        return weight
    rows = height * width * channels
    if tuple(weight.shape[:2]) != (1, 1) or weight.shape[2] < rows or weight.shape[3] < out_channels:
        raise TypeError(f"a weight of shape {tuple(weight.shape)} where {shape} is expected")
    return weight[0, 0, :rows, :out_channels].reshape(height, width, channels, out_channels).permute(3, 2, 0, 1)


def _fill_up(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    padding: list[Any] = []
    for have, want in zip(reversed(value.shape), reversed(shape), strict=True):
        padding += [0, want - have]
    return F.pad(value, padding)
