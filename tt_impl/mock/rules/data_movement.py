"""Operations that cut, join, repeat and shift values along dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import Call, across, nobodys, per_device, table
from tt_impl.mock.storage.constants import joined
from tt_impl.mock.storage.not_finite import UNWRITTEN


def cut(x: Tensor, start: Sequence[int], end: Sequence[int], step: Sequence[int] | None = None) -> Tensor:
    """Cut ``x[start:end:step]`` in every dim, as Python cuts a list: negative places count from the end."""
    part = x
    for dim, (low, high, stride) in enumerate(zip(start, end, step or [1] * len(start), strict=True)):
        places = range(*slice(low, high, stride).indices(x.shape[dim]))
        if stride == 1:
            part = part.narrow(dim, places.start, len(places))
        else:
            part = part.index_select(dim, torch.tensor(list(places), dtype=torch.int64))
    return part if part.numel() == x.numel() else part.clone()  # a view would keep all of x in memory


def _integers(values: Any) -> list[int]:
    return values.flatten().tolist() if isinstance(values, Tensor) else list(values)


@across("dram_prefetcher")
def dram_prefetcher(
    call: Call, tensors: Any, num_layers: int, global_cb: Any = None, *, enable_performance_mode: bool = False
) -> list[Tensor]:
    """Send blocks of weights ahead to matmuls, which are given the weights themselves; the result holds nothing."""
    return [nobodys(call.outputs[0].shape)] * len(tensors[0])


@per_device("slice", as_stored=True)
def slice_(
    input_tensor: Tensor, *limits: Any, slice_dim: int | None = None, num_devices: int | None = None, **named: Any
) -> Tensor:
    """Cut by ``limits``: the first places, the places after the last, and steps, as numbers or as tensors of numbers.

    ``slice_dim`` and ``num_devices`` say how large the result of limits in tensors is, which the output tells too.
    """
    values = list(limits)
    for names in (("slice_start", "starts"), ("slice_end", "ends"), ("slice_step", "steps")):
        values += [named.pop(name) for name in names if name in named]
    if named or len(values) not in (2, 3):
        raise TypeError(f"{sorted(named) or values} is not known")
    start, end, step = (None if limit is None else _integers(limit) for limit in (*values, None)[:3])
    return cut(input_tensor, start, end, step)


@per_device("experimental.padded_slice", as_stored=True, with_call=True)
def padded_slice(
    call: Call,
    input_tensor: Tensor,
    padded_slice_start: Sequence[int],
    padded_slice_end: Sequence[int],
    padded_slice_step: Sequence[int] | None = None,
) -> Tensor:
    """Slice; where the result is cut into shards its rows come as [1, 1, N*H*W, C], channels filled up with zeros."""
    part = cut(input_tensor, padded_slice_start, padded_slice_end, padded_slice_step)
    call.padding = 0.0
    shape = tuple(call.outputs[0].shape)
    return part if shape == part.shape else F.pad(part, (0, shape[-1] - part.shape[-1])).reshape(shape)


@per_device("experimental.slice_write", as_stored=True)
def slice_write(input_tensor: Tensor, output_tensor: Tensor, start: Any, end: Any, step: Any) -> Tensor:
    """Write ``input_tensor`` over part ``[start:end:step]`` of ``output_tensor``.

    What comes as rows, [1, 1, N*H*W, C], may have its W and C filled up, to a tile and over the cores.
    """
    result = output_tensor.clone()
    part = result[tuple(map(slice, start, end, step))]
    rows = input_tensor
    if rows.shape[:-1] != part.shape[:-1]:
        rows = rows.reshape(*part.shape[:-2], -1, rows.shape[-1])[..., : part.shape[-2], :]
    part.copy_(rows[..., : part.shape[-1]])
    return result


@per_device("concat", as_stored=True)
def concat(tensors: Sequence[Tensor], dim: int = 0, *, groups: int = 1) -> Tensor:
    """Join; with ``groups``, the first groups of all tensors come before the second groups."""
    if groups == 1:
        return joined(tensors, dim)
    parts = [x.chunk(groups, dim) for x in tensors]
    return torch.cat([x[group] for group in range(groups) for x in parts], dim)


def _pad_pairs(x: Tensor, pairs: Sequence[Sequence[int]], value: float) -> Tensor:
    if x.is_floating_point():
        value = float(torch.tensor(value).to(x.dtype))  # infinity, where bfloat16 has no such number
    return F.pad(x, [amount for pair in reversed(list(pairs)) for amount in pair], value=value)


@per_device("pad", as_stored=True)
def pad(input_tensor: Tensor, *args: Any, **named: Any) -> Tensor:
    """Pad by ``padding``: (before, after) per dimension, the last ones if there are fewer than dimensions.

    The other form has the shape of the result and where in it the tensor starts.
    """
    names = ["padding", "value"]
    if "output_padded_shape" in named or (args and not isinstance(args[0][0], list | tuple)):
        names = ["output_padded_shape", "input_tensor_start", "value"]
    arguments = dict(zip(names, args, strict=False)) | named
    if set(arguments) - set(names) or len(args) > len(names):
        raise TypeError(f"{sorted(set(arguments) - set(names))} is not known")
    if "padding" in arguments:
        pairs = arguments["padding"]
    else:
        sizes = zip(arguments["input_tensor_start"], arguments["output_padded_shape"], input_tensor.shape, strict=True)
        pairs = [(start, size - start - n) for start, size, n in sizes]
    return _pad_pairs(input_tensor, pairs, arguments.get("value", 0.0))


def _grown(x: Tensor, shape: tuple[int, ...], value: float) -> Tensor:
    return _pad_pairs(x, [(0, size - n) for size, n in zip(shape, x.shape, strict=True)], value)


@per_device("tilize_with_val_padding", with_call=True, rounds_once=True)
def tilize_with_val_padding(call: Call, input_tensor: Tensor, output_tensor_shape: Any, pad_value: float) -> Tensor:
    """Grow to the shape that the output shows; what it holds beyond the tensor is ``pad_value``."""
    call.padding = pad_value
    return _grown(input_tensor, tuple(call.outputs[0].shape), pad_value)


@per_device("tilize_with_zero_padding", with_call=True, rounds_once=True)
def tilize_with_zero_padding(call: Call, input_tensor: Tensor) -> Tensor:
    return tilize_with_val_padding(call, input_tensor, None, 0.0)


@per_device("untilize_with_unpadding", with_call=True, rounds_once=True)
def untilize_with_unpadding(call: Call, input_tensor: Tensor, output_tensor_end: Sequence[int]) -> Tensor:
    """Cut behind ``output_tensor_end``, the last place of every dim, which may lie in the padding of tiles."""
    ends = [end + 1 for end in output_tensor_end]
    padding = call.store.padding(call.argument("input_tensor", 0), call.name)
    if padding is None and any(end > size for end, size in zip(ends, input_tensor.shape, strict=True)):
        raise call.unsupported("padding of tiles that no operation has set")
    shape = tuple(max(sizes) for sizes in zip(ends, input_tensor.shape, strict=True))
    return cut(_grown(input_tensor, shape, padding or 0.0), [0] * input_tensor.dim(), ends)


table(
    {
        "chunk": lambda input_tensor, chunks, dim: list(torch.chunk(input_tensor, chunks, dim)),
        "expand": lambda input_tensor, output_shape: input_tensor.expand(tuple(output_shape)).contiguous(),
        "experimental.broadcast_to": lambda input, output_shape: input.expand(tuple(output_shape)).contiguous(),
        "experimental.convert_to_chw": lambda input: input.transpose(2, 3),  # [1, 1, HW, C] -> [1, 1, C, HW]
        # fewer numbers than dims are of the last dims, as in torch's ``tile``
        "repeat": lambda input_tensor, repeat_dims: torch.tile(input_tensor, tuple(repeat_dims)),
        "repeat_interleave": lambda input_tensor, repeats, dim: input_tensor.repeat_interleave(repeats, dim),
        # without ``dim`` the tensor is rolled as if it were flat
        "roll": lambda input_tensor, shifts, dim=None: torch.roll(input_tensor, shifts, dim),
        "split": lambda input_tensor, split_size, dim=0: input_tensor.split(split_size, dim),
        "stack": lambda input_tensors, dim: torch.stack(list(input_tensors), dim),
    },
    as_stored=True,
)


@per_device("interleaved_to_sharded_partial", with_call=True, rounds_once=True)
def interleaved_to_sharded_partial(
    call: Call, input_tensor: Tensor, grid: Any, shard_shape: Any, num_slices: int, slice_index: int, *_placement: Any
) -> Tensor:
    """Take slice ``slice_index`` of ``num_slices`` equal ones of the rows, all leading dims taken as rows."""
    return _rows(input_tensor, num_slices)[slice_index].reshape(tuple(call.outputs[0].shape))


@per_device("sharded_to_interleaved_partial", as_stored=True)
def sharded_to_interleaved_partial(
    input_tensor: Tensor, cache_tensor: Tensor, num_slices: int, slice_index: int
) -> Tensor:
    """Replace slice number ``slice_index`` of the rows of ``cache_tensor``."""
    slices = list(_rows(cache_tensor, num_slices))
    slices[slice_index] = input_tensor.reshape(slices[slice_index].shape)
    return torch.cat(slices).reshape(cache_tensor.shape)


def _rows(x: Tensor, slices: int) -> Sequence[Tensor]:
    return x.reshape(-1, x.shape[-1]).chunk(slices)


@per_device("experimental.convert_to_hwc", with_call=True, rounds_once=True)
def convert_to_hwc(call: Call, input: Tensor) -> Tensor:
    """Turn [1, B, C, HW] into [1, 1, B * HW, C]; channels that fill up a row of memory are not written."""
    rows = input.transpose(2, 3).reshape(1, 1, -1, input.shape[2])
    return F.pad(rows.float(), (0, call.outputs[0].shape[-1] - input.shape[2]), value=UNWRITTEN)


@per_device("fold", with_call=True, rounds_once=True)
def fold(
    call: Call,
    input: Tensor,
    stride_h: int,
    stride_w: int,
    use_transpose_as_fold: bool = False,
    output_shape: Any = None,
    padding: Sequence[int] = (0, 0),
    grid_size: Any = None,
    override_memory_config: Any = None,
    *,
    collapse_output: bool = False,
) -> Tensor:
    """Fold [N, H, W, C] to [N, H / stride_h, W / stride_w, stride_h * stride_w * C], in the shape of the output.

    ``padding`` comes first: of height and width, or of each side: top, bottom, left, right, and of channels. With
    ``use_transpose_as_fold`` the input is [N, C, H, W], and rows and columns are those of the output.
    """
    shape = tuple(call.outputs[0].shape)
    if use_transpose_as_fold:
        input = input.permute(0, 2, 3, 1)
    if len(padding) == 2:
        padding = (padding[0], padding[0], padding[1], padding[1])
    top, bottom, left, right, *channels = padding
    input = F.pad(input, (*(channels or (0, 0)), left, right, top, bottom))
    if use_transpose_as_fold:  # it fills rows up to tiles, and cuts them where an output_shape says so
        _, rows, columns, _ = shape
        input = F.pad(input, (0, 0, 0, columns * stride_w - input.shape[2], 0, rows * stride_h - input.shape[1]))
    if math.prod(shape) != input.numel():
        raise call.unsupported(f"an output of shape {shape}")
    n, h, w, c = input.shape
    cells = input.reshape(n, h // stride_h, stride_h, w // stride_w, stride_w, c).transpose(2, 3)
    return cells.reshape(shape)
