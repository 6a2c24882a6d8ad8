"""Pooling of images, channels last: [1, 1, N*H*W, C] or [N, H, W, C] -> [1, 1, N*H'*W', C].

Windows, paddings, divisors and indices are those of ``torch.nn.functional``; a padding of four numbers is (top,
bottom, left, right), which torch does not have, so borders are laid around the image before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device

Pair = Sequence[int]


def sides_of(padding: Pair) -> tuple[int, int, int, int]:
    """Return (top, bottom, left, right) from that or from (height, width)."""
    top, bottom, left, right = padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    return top, bottom, left, right


def image_of(rows: Tensor, batch: int, height: int, width: int, channels: int) -> Tensor:
    """Return [N, C, H, W] from a tensor with channels last, whose channels and rows may be padded."""
    rows = rows.float().reshape(-1, rows.shape[-1])[: batch * height * width]
    return rows.reshape(batch, height, width, -1)[..., :channels].permute(0, 3, 1, 2)


def _more_below(size: int, before: int, after: int, reach: int, stride: int, ceil_mode: bool) -> int:
    """Count the rows beyond the padding that ``ceil_mode``'s last window reaches into; negative: rows left over."""
    span = size + before + after - reach
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + before:
        count -= 1  # a window must begin inside the image or the padding before it
    return (count - 1) * stride + reach - (size + before + after)


def _framed(
    x: Tensor, kernel: Pair, stride: Pair, sides: tuple, dilation: Pair, ceil_mode: bool, fill: float
) -> Tensor:
    """Return the image with its padding, ending where the last window ends."""
    top, bottom, left, right = sides
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    below = _more_below(x.shape[-2], top, bottom, reach[0], stride[0], ceil_mode)
    beside = _more_below(x.shape[-1], left, right, reach[1], stride[1], ceil_mode)
    return F.pad(x, (left, right + beside, top, bottom + below), value=fill)


def _rows(call: Call, image: Tensor, output: int = 0) -> Tensor:
    """Put channels last, in the shape of an output; what that has more channels are zeros."""
    shape = tuple(call.outputs[output].shape)
    rows = image.permute(0, 2, 3, 1)
    return F.pad(rows, (0, max(0, shape[-1] - rows.shape[-1]))).reshape(shape)


@per_device("max_pool2d", with_call=True)
def max_pool2d(
    call: Call,
    input_tensor: Tensor,
    batch_size: int,
    input_h: int,
    input_w: int,
    channels: int,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    ceil_mode: bool = False,
    *,
    return_indices: bool = False,
    **placement: Any,
) -> tuple[Tensor, ...]:
    """Take the largest of every window, and, for ``return_indices``, its place in the channel, row * width + column."""
    call.check_named(placement, _PLACEMENT)
    sides = sides_of(padding)
    x = image_of(input_tensor, batch_size, input_h, input_w, channels)
    framed = _framed(x, kernel_size, stride, sides, dilation, ceil_mode, float("-inf"))
    values, places = F.max_pool2d(framed, tuple(kernel_size), tuple(stride), 0, tuple(dilation), return_indices=True)
    if not return_indices:
        return (_rows(call, values),)
    row = places // framed.shape[-1] - sides[0]
    column = places % framed.shape[-1] - sides[2]
    return _rows(call, values), _rows(call, row * input_w + column, 1)


def averaged(framed: Tensor, kernel: Pair, steps: Pair, divisors: Tensor) -> Tensor:
    """Sum every window of [N, C, H, W] and divide by ``divisors``, which broadcast to [N, C, H', W']."""
    return F.avg_pool2d(framed, tuple(kernel), tuple(steps), divisor_override=1) / divisors


@per_device("avg_pool2d", with_call=True)
def avg_pool2d(
    call: Call,
    input_tensor: Tensor,
    batch_size: int,
    input_h: int,
    input_w: int,
    channels: int,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    averaged: Callable[..., Tensor] = averaged,
    **placement: Any,
) -> Tensor:
    """Average every window over its size: all of it, or what of it lies inside the image (and its padding)."""
    call.check_named(placement, _PLACEMENT)
    sides = sides_of(padding)
    kernel = tuple(kernel_size)
    steps = tuple(stride)
    x = image_of(input_tensor, batch_size, input_h, input_w, channels)
    framed = _framed(x, kernel, steps, sides, (1, 1), ceil_mode, 0.0)
    if divisor_override is not None:
        return _rows(call, averaged(framed, kernel, steps, torch.tensor(float(divisor_override))))
    top, bottom, left, right = sides
    inside = torch.ones(1, 1, input_h, input_w)
    counted = F.pad(inside, (left, right, top, bottom), value=float(count_include_pad))
    missing = [framed.shape[-1] - counted.shape[-1], framed.shape[-2] - counted.shape[-2]]
    counted = F.pad(counted, (0, missing[0], 0, missing[1]))
    divisors = F.avg_pool2d(counted, kernel, steps, divisor_override=1)
    return _rows(call, averaged(framed, kernel, steps, divisors))


_PLACEMENT = frozenset(
    "applied_shard_scheme deallocate_input reallocate_halo_output reallocate_output config_tensor_in_dram "
    "dram_slice_config".split()
)
"""Keywords that say where tensors lie: they may be left unused."""


def _uniform(call: Call, size: int, count: int) -> tuple[int, int]:
    """Return size and distance of torch's windows; refuse those that differ: ttnn wants all to be the same."""
    starts = [i * size // count for i in range(count)]
    ends = [-(-(i + 1) * size // count) for i in range(count)]
    widths = {end - start for start, end in zip(starts, ends, strict=True)}
    steps = {b - a for a, b in pairwise(starts)}
    if len(widths) > 1 or len(steps) > 1:
        raise call.unsupported(f"{size} rows pooled to {count}, whose windows differ in size or distance")
    return widths.pop(), steps.pop() if steps else 1


@per_device("adaptive_avg_pool2d", "adaptive_max_pool2d", with_call=True)
def adaptive_pool2d(
    call: Call,
    input_tensor: Tensor,
    batch_size: int,
    input_h: int,
    input_w: int,
    channels: int,
    output_size: Pair,
    averaged: Callable[..., Tensor] = averaged,
    **placement: Any,
) -> Tensor:
    """Pool by windows that ttnn chooses, so many that the output has the size asked for."""
    call.check_named(placement, _PLACEMENT)
    rows, columns = (_uniform(call, *sizes) for sizes in zip((input_h, input_w), output_size, strict=True))
    kernel, steps = zip(rows, columns, strict=True)
    x = image_of(input_tensor, batch_size, input_h, input_w, channels)
    if "max" in call.name:
        return _rows(call, F.max_pool2d(x, kernel, steps))
    return _rows(call, averaged(x, kernel, steps, torch.tensor(float(kernel[0] * kernel[1]))))
