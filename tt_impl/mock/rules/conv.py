"""Convolution, channels last.

Legend: N images or videos of D frames, H x W pixels, C channels, O output channels, K x L kernel (J x K x L over
frames).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.conv_weights import (
    as_rows,
    plain,
    prepared_bias,
    prepared_weights,
    stored_as,
    weight_layout,
    weight_of,
)
from tt_impl.mock.rules.eltwise import activate
from tt_impl.mock.rules.pool import image_of, sides_of
from tt_impl.mock.rules.registry import SUMS_BFLOAT16, Call, across, per_device
from tt_impl.mock.storage.values import Shards


@across("conv2d", "conv_transpose2d")
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
    output_padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    bias_tensor: Shards | Tensor | None = None,
    mirror_kernel: bool = True,
    convolve: Callable[..., Tensor] | None = None,
) -> tuple[list[Tensor], ...]:
    """Convolve [1, 1, N*H*W, C] (or [N, H, W, C]) with [O, C/groups, K, L] to [1, 1, N*H'*W', O].

    A transposed one has [C, O/groups, K, L]; its padding takes rows away from the whole result, output padding lets it
    end later. A kernel that was mirrored by the caller (``mirror_kernel=False``) is turned back, unless it is a
    prepared one: its preparation was told. ``convolve`` activates, too.
    """
    transposed = "transpose" in call.name
    border = _border(call)
    top, bottom, left, right = sides_of(padding)
    groups = max(groups, 1)  # to ttnn none are one
    of_a_pixel = tuple(kernel_size) == (1, 1) and not (transposed or any(sides_of(padding)))
    filled = math.prod(tuple(call.outputs[0].shape)[:-1]) if of_a_pixel else 0

    def convolved(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if filled > batch_size * input_height * input_width:  # ttnn puts zeros behind what it finds on the host
            rows = rows.reshape(-1, rows.shape[-1])
            x = image_of(F.pad(rows, (0, 0, 0, filled - len(rows))), 1, 1, filled, in_channels)
        else:
            x = image_of(rows, batch_size, input_height, input_width, in_channels)
        if not transposed:
            x = F.pad(x[:, : weight.shape[1] * groups], (left, right, top, bottom), border)
            if convolve is not None:
                return convolve(x, _dense(weight, groups), bias, tuple(stride), tuple(dilation))
            return F.conv2d(x, weight, bias, tuple(stride), 0, tuple(dilation), groups)
        if convolve is not None and groups > 1:
            raise call.unsupported("groups of a transposed convolution")
        if convolve is not None or border != "constant":
            sides = (top, bottom - output_padding[0], left, right - output_padding[1])
            x = _spread(x, tuple(stride), tuple(dilation), weight.shape[2:], sides, border)
            turned = weight.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1).flip(2, 3)
            if convolve is not None:
                return convolve(x, turned, bias, (1, 1), tuple(dilation))
            return F.conv2d(x, turned, bias, (1, 1), 0, tuple(dilation), groups)
        y = F.conv_transpose2d(x, weight.transpose(0, 1), None, tuple(stride), 0, 0, groups, tuple(dilation))
        y = F.pad(y, (-left, output_padding[1] - right, -top, output_padding[0] - bottom))
        return y if bias is None else y + bias.view(1, -1, 1, 1)

    layout = weight_layout(call, weight_tensor, in_channels, out_channels, groups, kernel_size, mirror_kernel)
    tensors = input_tensor, weight_tensor, bias_tensor
    return _results(call, convolved, tensors, *layout, activates=convolve is None)


def _spread(
    x: Tensor, stride: tuple, dilation: tuple, kernel: Sequence[int], sides: tuple[int, ...], border: str
) -> Tensor:
    """Return the image that a plain convolution of the turned kernel takes for a transposed one.

    Args:
        x: (N, C, H, W); zeros come between its pixels where the stride is more than 1.
        sides: rows and columns that are cut off the whole result: top, bottom, left, right.
        border: what comes around the image, as torch calls it.
    """
    image = x.new_zeros(*x.shape[:2], *((size - 1) * step + 1 for size, step in zip(x.shape[2:], stride, strict=True)))
    image[:, :, :: stride[0], :: stride[1]] = x
    rows, columns = (step * (size - 1) for step, size in zip(dilation, kernel, strict=True))
    top, bottom, left, right = sides
    return F.pad(image, (columns - left, columns - right, rows - top, rows - bottom), border)


@across("conv1d")
def conv1d(
    call: Call,
    *,
    input_tensor: Shards,
    weight_tensor: Shards | Tensor,
    in_channels: int,
    out_channels: int,
    batch_size: int,
    input_length: int,
    kernel_size: int,
    stride: int = 1,
    padding: Sequence[int] | int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias_tensor: Shards | Tensor | None = None,
    convolve: Callable[..., Tensor] | None = None,
) -> tuple[list[Tensor], ...]:
    """Convolve [N, L, C] (or [1, 1, N*L, C]) with [O, C/groups, K] to [1, 1, N*L', O]."""
    sides = (padding, padding) if isinstance(padding, int) else padding
    return conv2d(
        call, input_tensor=input_tensor, weight_tensor=weight_tensor, in_channels=in_channels,
        out_channels=out_channels, batch_size=batch_size, input_height=1, input_width=input_length,
        kernel_size=(1, kernel_size), stride=(1, stride), padding=(0, 0, *sides), dilation=(1, dilation),
        groups=groups, bias_tensor=bias_tensor, convolve=convolve,
    )  # fmt: skip


def _border(call: Call) -> str:
    """Return what the configuration says to pad with, as torch calls it."""
    mode = getattr(call.kwargs.get("conv_config"), "padding_mode", None)
    return {"Replicate": "replicate", "Zeros": "constant", "": "constant"}[getattr(mode, "name", "")]


def _results(
    call: Call,
    convolved: Callable[..., Tensor],
    tensors: tuple[Shards, Shards | Tensor, Shards | Tensor | None],
    weight_shape: tuple[int, ...],
    mirrored: bool | None,
    *,
    activates: bool,
) -> tuple[list[Tensor], ...]:
    """Return the convolution, activated, channels last, and the prepared weights if they are asked for."""
    input_tensor, weight_tensor, bias_tensor = tensors
    out_channels = call.kwargs["out_channels"]
    config = call.kwargs.get("conv_config")
    dtype = getattr(config, "weights_dtype", None)

    def finished(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else stored_as(bias.float().reshape(1, 1, 1, -1), dtype).reshape(-1)[:out_channels]
        by_row = as_rows(plain(weight.float(), weight_shape, mirrored), weight_shape)
        weight = weight_of(stored_as(by_row, dtype), weight_shape)
        y = activate(convolved(rows, weight, bias), getattr(config, "activation", None) if activates else None)
        return y.permute(0, 2, 3, 1).reshape(tuple(call.outputs[0].shape))

    outputs = call.each(finished, input_tensor, weight_tensor, bias_tensor)
    if not call.kwargs.get("return_weights_and_bias"):
        return (outputs,)
    prepared = [call.each(lambda weight: prepared_weights(call, weight, weight_shape, 1, mirrored), weight_tensor)]
    if bias_tensor is not None:
        prepared.append(call.each(lambda bias: prepared_bias(call, bias, out_channels, 2), bias_tensor))
    return (outputs, *prepared)


def _rows(weight: Tensor, block: int, alignment: int) -> Tensor:
    """Lay weights [O, C, J, K, L] out as conv3d multiplies by them, [J*K*L*C, O].

    C is filled up to ``alignment`` and cut in blocks (0: one) that come first.
    """
    weight = F.pad(weight.permute(2, 3, 4, 1, 0), (0, 0, 0, -weight.shape[1] % alignment))
    blocks = weight.unflatten(3, (-1, block or weight.shape[3]))
    return blocks.permute(3, 0, 1, 2, 4, 5).flatten(0, 4)


@per_device("experimental.prepare_conv3d_weights")
def prepare_conv3d_weights(
    *, weight_tensor: Tensor, groups: int = 1, C_in_block: int = 0, alignment: int = 32
) -> Tensor:
    """Prepare weights from the host, or from a device."""
    return _rows(_dense(weight_tensor.float(), groups), C_in_block, alignment)


def _conv3d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple, dilation: tuple) -> Tensor:
    """Convolve [N, C, D, H, W] with [O, C, J, K, L] to [N, O, D', H', W'].

    Sound and the like, of one pixel, are convolved in one dim, in which torch is some twenty times faster.
    """
    if x.shape[3:] == weight.shape[3:] == (1, 1):
        y = F.conv1d(x[..., 0, 0], weight[..., 0, 0], bias, stride[0], 0, dilation[0])
        return y[..., None, None]
    return F.conv3d(x, weight, bias, stride, 0, dilation)


@per_device("experimental.conv3d", with_call=True, rounds_once=SUMS_BFLOAT16)
def conv3d(
    call: Call,
    *,
    input_tensor: Tensor,
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    output_channels: int,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    padding_mode: str = "zeros",
    groups: int = 1,
    convolve: Callable[..., Tensor] = _conv3d,
) -> Tensor:
    """Convolve [N, D, H, W, C] to [N, D', H', W', O]; weights are [O, C, J, K, L] or of ``prepare_conv3d_weights``."""
    config = call.kwargs.get("config")
    if tuple(getattr(config, "dilation", None) or dilation) not in ((1, 1, 1), tuple(dilation)):
        raise call.unsupported("a dilation in the config that is not the call's")
    x = input_tensor.permute(0, 4, 1, 2, 3)
    if weight_tensor.dim() == 5:
        weight = _dense(weight_tensor, groups)  # the input may have its channels filled up to a whole tile
        weight = F.pad(weight, (0, 0) * 3 + (0, x.shape[1] - weight.shape[1]))
    else:
        channels = weight_tensor.shape[-2] // math.prod(kernel_size)
        block = config.C_in_block if config is not None else 0
        blocks = weight_tensor.reshape(-1, *kernel_size, block or channels, weight_tensor.shape[-1])
        weight = blocks.permute(5, 0, 4, 1, 2, 3).flatten(1, 2)
    sides = [side for pad in reversed(list(padding)) for side in (pad, pad)]
    x = F.pad(x, sides, mode="constant" if padding_mode == "zeros" else padding_mode)
    bias = None if bias_tensor is None else bias_tensor.reshape(-1, bias_tensor.shape[-1])[0, :output_channels]
    y = convolve(x, weight[:output_channels], bias, tuple(stride), tuple(dilation))
    return y.permute(0, 2, 3, 4, 1)


def _dense(weight: Tensor, groups: int) -> Tensor:
    """Turn [O, C/groups, ...] into [O, C, ...]: zero where an output channel does not see an input channel."""
    if groups == 1:
        return weight
    seen = weight.shape[1]
    parts = enumerate(weight.chunk(groups))
    return torch.cat(
        [F.pad(part, (0, 0) * (part.dim() - 2) + (i * seen, (groups - 1 - i) * seen)) for i, part in parts]
    )
