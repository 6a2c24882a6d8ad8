"""Convolution, channels last.

Legend: N images or videos of D frames, H x W pixels, C channels, O output channels, K x L kernel (J x K x L over
frames). ttnn may hand back prepared weights of conv2d, in an order of its own, and takes them at the next call; here
they are [1, 1, K*L*C, O], filled up to ttnn's shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.registry import Call, across
from tt_impl.mock.values import Shards, ranks_of


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
    activation = getattr(call.kwargs.get("conv_config"), "activation", None)
    outputs, weights, biases = [], [], []
    for i in range(len(input_tensor)):
        x = input_tensor[i].reshape(batch_size, input_height, input_width, -1)[..., :in_channels].permute(0, 3, 1, 2)
        weight = _weight(_of(weight_tensor, i), weight_shape)
        bias = None if bias_tensor is None else _of(bias_tensor, i).reshape(-1)[:out_channels]
        y = F.conv2d(F.pad(x, (left, right, top, bottom)), weight, bias, tuple(stride), 0, tuple(dilation), groups)
        outputs.append(activate(y.permute(0, 2, 3, 1).reshape(1, 1, -1, out_channels), activation))
        weights.append(weight.permute(2, 3, 1, 0).reshape(1, 1, -1, out_channels))
        biases.append(bias)
    if not return_weights_and_bias:
        return (outputs,)
    prepared = [weights] if bias_tensor is None else [weights, [b.reshape(1, 1, 1, -1) for b in biases]]
    shapes = [tuple(t.shape) for t in call.outputs[1:]]
    return (outputs, *([_fill_up(v, shape) for v in values] for values, shape in zip(prepared, shapes, strict=True)))


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
    if groups != 1:
        raise call.unsupported("groups")
    devices = len(ranks_of(call.outputs[0]))
    return [_rows(_of(weight_tensor, i), C_in_block, alignment) for i in range(devices)]


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
    if groups != 1:
        raise call.unsupported("groups")
    config = call.kwargs.get("config")
    block = config.C_in_block if config is not None else 0
    outputs = []
    for i in range(len(input_tensor)):
        x, weight = input_tensor[i].permute(0, 4, 1, 2, 3), weight_tensor[i]
        if weight.dim() != 5:
            channels = weight.shape[-2] // math.prod(kernel_size)
            blocks = weight.reshape(-1, *kernel_size, block or channels, weight.shape[-1])
            weight = blocks.permute(5, 0, 4, 1, 2, 3).flatten(1, 2)[:, : x.shape[1]]
        sides = [side for pad in reversed(list(padding)) for side in (pad, pad)]
        x = F.pad(x, sides, mode="constant" if padding_mode == "zeros" else padding_mode)
        bias = None if bias_tensor is None else bias_tensor[i].reshape(-1, bias_tensor.shape[-1])[0, :output_channels]
        y = F.conv3d(x, weight[:output_channels], bias, tuple(stride), 0, tuple(dilation))
        outputs.append(y.permute(0, 2, 3, 4, 1))
    return outputs


def _of(value: Shards | Tensor, device: int) -> Tensor:
    return value[device] if isinstance(value, Shards) else value.float()


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
