"""Operations that move values and do not change them: views, layouts, dtypes, cutting and joining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tt_impl.mock.rules.registry import per_device


@per_device("to_memory_config", "interleaved_to_sharded", "sharded_to_interleaved", "reshard", "reallocate")
def to_memory_config(tensor: Tensor, *_placement: Any) -> Tensor:
    return tensor


@per_device("to_layout")
def to_layout(tensor: Tensor, *_layout: Any) -> Tensor:
    return tensor


@per_device("typecast")
def typecast(input_tensor: Tensor, *_dtypes: Any) -> Tensor:
    return input_tensor


@per_device("clone", "move", "tilize", "untilize")
def clone(input_tensor: Tensor) -> Tensor:
    return input_tensor


@per_device("copy")
def copy(input_a: Tensor, input_b: Tensor) -> Tensor:
    return input_a


@per_device("assign")
def assign(input_tensor: Tensor, *_output: Any) -> Tensor:
    return input_tensor


@per_device("reshape", "Tensor.reshape")
def reshape(input_tensor: Tensor, *shape: Any) -> Tensor:
    """``shape`` is one sequence, the sizes themselves, or a logical and a padded shape."""
    sizes = shape[0] if isinstance(shape[0], list | tuple) else shape
    return input_tensor.reshape(tuple(sizes))


@per_device("view", "experimental.view")
def view(input_tensor: Tensor, shape: Sequence[int]) -> Tensor:
    return input_tensor.reshape(tuple(shape))


@per_device("unsqueeze")
def unsqueeze(input_tensor: Tensor, dim: int) -> Tensor:
    return input_tensor.unsqueeze(dim)


@per_device("unsqueeze_to_4D")
def unsqueeze_to_4d(input_tensor: Tensor) -> Tensor:
    return input_tensor.reshape((1,) * (4 - input_tensor.dim()) + tuple(input_tensor.shape))


@per_device("squeeze")
def squeeze(input_tensor: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    if dim is None:
        return input_tensor.squeeze()
    return input_tensor.squeeze(dim if isinstance(dim, int) else tuple(dim))


@per_device("permute")
def permute(input_tensor: Tensor, dims: Sequence[int]) -> Tensor:
    return input_tensor.permute(tuple(dims))


@per_device("transpose")
def transpose(input_tensor: Tensor, dim1: int, dim2: int) -> Tensor:
    return input_tensor.transpose(dim1, dim2)


@per_device("slice")
def slice_(
    input_tensor: Tensor, slice_start: Sequence[int], slice_end: Sequence[int], slice_step: Sequence[int] | None = None
) -> Tensor:
    steps = slice_step or [1] * len(slice_start)
    return input_tensor[tuple(map(slice, slice_start, slice_end, steps))]


@per_device("concat")
def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat(list(tensors), dim)


@per_device("stack")
def stack(input_tensors: Sequence[Tensor], dim: int) -> Tensor:
    return torch.stack(list(input_tensors), dim)


@per_device("pad")
def pad(input_tensor: Tensor, padding: Sequence[Any], value: float = 0.0, *rest: Any) -> Tensor:
    """``padding`` is (before, after) per dimension, the last ones if there are fewer than dimensions."""
    if rest or not isinstance(padding[0], list | tuple):
        raise TypeError("only padding as (before, after) per dimension is known")
    amounts = [amount for pair in reversed(list(padding)) for amount in pair]
    return F.pad(input_tensor, amounts, value=value)


@per_device("fill_implicit_tile_padding")
def fill_implicit_tile_padding(input_tensor: Tensor, *_fill_value: Any) -> Tensor:
    """What fills the last tile lies beyond the tensor; a golden value has no tiles."""
    return input_tensor


@per_device("split")
def split(input_tensor: Tensor, split_size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    return list(torch.split(input_tensor, split_size if isinstance(split_size, int) else list(split_size), dim))


@per_device("chunk")
def chunk(input_tensor: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    return list(torch.chunk(input_tensor, chunks, dim))


@per_device("repeat")
def repeat(input_tensor: Tensor, repeat_dims: Sequence[int]) -> Tensor:
    return input_tensor.repeat(tuple(repeat_dims))


@per_device("repeat_interleave")
def repeat_interleave(input_tensor: Tensor, repeats: int, dim: int) -> Tensor:
    return input_tensor.repeat_interleave(repeats, dim)


@per_device("expand")
def expand(input_tensor: Tensor, output_shape: Sequence[int]) -> Tensor:
    return input_tensor.expand(tuple(output_shape)).contiguous()


@per_device("upsample")
def upsample(input_tensor: Tensor, scale_factor: int | Sequence[int], *, mode: str = "nearest") -> Tensor:
    """[N, H, W, C] -> [N, H*s, W*s, C], nearest."""
    if mode != "nearest":
        raise TypeError(f"mode '{mode}' is not known")
    scale = (scale_factor, scale_factor) if isinstance(scale_factor, int) else tuple(scale_factor)
    if not all(math.isclose(s, round(s)) for s in scale):
        raise TypeError("only whole scale factors are known")
    return input_tensor.repeat_interleave(int(scale[0]), 1).repeat_interleave(int(scale[1]), 2)
