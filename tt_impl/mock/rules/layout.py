"""Operations that change how values lie in memory and not the values: views, layouts, dtypes, placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import ttnn
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device, table
from tt_impl.mock.storage import dtypes, views


@per_device("to_layout", with_call=True, rounds_once=True)
def to_layout(call: Call, tensor: Tensor, *_layout: Any) -> Tensor:
    """Turn rows into tiles that are filled up with ``pad_value``, zero unless it is given."""
    source = call.argument("tensor", 0)
    (out,) = call.outputs
    if source.layout == ttnn.ROW_MAJOR_LAYOUT and out.layout == ttnn.TILE_LAYOUT:
        call.padding = call.kwargs.get("pad_value") or 0.0
    return tensor


@per_device("typecast", "experimental.typecast", with_call=True)
def typecast(call: Call, input_tensor: Tensor, *_dtypes: Any) -> Tensor:
    """Cast as :func:`tt_impl.mock.storage.dtypes.typecast` says."""
    return dtypes.typecast(input_tensor, call.argument("input_tensor", 0).dtype, call.outputs[0].dtype)


@per_device("bitcast", with_call=True, as_stored=True)
def bitcast(call: Call, input_tensor: Tensor, *_dtype: Any) -> Tensor:
    """Take the bits of a number for those of one of another dtype of the same width."""
    dtype = call.outputs[0].dtype
    bits = input_tensor
    if bits.is_floating_point():
        bits = views.bits_of(bits).to(torch.int64)
    if dtype == ttnn.bfloat16:
        return bits.to(torch.int16).view(torch.bfloat16)
    if dtype == ttnn.float32:
        return bits.to(torch.int32).view(torch.float32)
    low, high = dtypes.RANGES[dtype]
    return (bits - low) % (high - low + 1) + low


@per_device("reshape", "Tensor.reshape", as_stored=True)
def reshape(input_tensor: Tensor, *sizes: Any, **named: Any) -> Tensor:
    """Reshape: the shape is one sequence or the sizes themselves; a second sequence is the shape with padding."""
    shape = named.pop("shape", None) or named.pop("logical_shape", None)
    named.pop("padded_shape", None)
    if named:
        raise TypeError(f"{sorted(named)} is not known")
    if shape is None:
        shape = sizes[0] if isinstance(sizes[0], list | tuple) else sizes
    return input_tensor.reshape(tuple(shape))


@per_device("squeeze", as_stored=True)
def squeeze(input_tensor: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    if dim is None:
        return input_tensor.squeeze()
    return input_tensor.squeeze(dim if isinstance(dim, int) else tuple(dim))


def _elsewhere(input_tensor: Tensor, *_placement: Any, output_memory_config: Any = None) -> Tensor:
    return input_tensor


table(
    {
        "assign": lambda input_tensor, _output=None: input_tensor,
        "clone": lambda input: input,
        "copy": lambda input_a, input_b: input_a,
        # ``keep_l1_aligned`` pads the rows of a shard in memory
        "interleaved_to_sharded": lambda input_tensor, *_placement, keep_l1_aligned=False, **_named: input_tensor,
        "move": lambda input_tensor: input_tensor,
        "permute": lambda input_tensor, dims, *_pad_value: input_tensor.permute(tuple(dims)),
        "reallocate": lambda tensor, *_placement: tensor,
        "reshape_on_device": lambda input_tensor, W, Z, Y, X: input_tensor.reshape(W, Z, Y, X),
        "reshard": _elsewhere,
        "sharded_to_interleaved": _elsewhere,
        "tilize": lambda input_tensor: input_tensor,
        "to_memory_config": lambda tensor, *_placement: tensor,
        "transpose": lambda input_tensor, dim1, dim2, *_pad_value: input_tensor.transpose(dim1, dim2),
        "unsqueeze": lambda input_tensor, dim: input_tensor.unsqueeze(dim),
        "untilize": lambda input_tensor: input_tensor,
        # results share the buffer of the input, whatever the sizes: no rule is asked for values
        **dict.fromkeys(
            ("view", "experimental.view", "unsqueeze_to_4D"), lambda input_tensor, *_sizes, **_named: input_tensor
        ),
    },
    as_stored=True,
)


@per_device("fill_implicit_tile_padding", with_call=True, rounds_once=True)
def fill_implicit_tile_padding(call: Call, input_tensor: Tensor, fill_value: float) -> Tensor:
    """Return the values; what fills the tiles beyond the shape is known from now on."""
    call.padding = fill_value
    return input_tensor


@per_device("upsample")
def upsample(input_tensor: Tensor, scale_factor: float | Sequence[float], *, mode: str = "nearest") -> Tensor:
    """Repeat pixels: [N, H, W, C] -> [N, H*s, W*s, C]."""
    if mode != "nearest":
        raise TypeError(f"mode '{mode}' is not known")
    height, width = (scale_factor, scale_factor) if isinstance(scale_factor, int | float) else scale_factor
    if height != round(height) or width != round(width):
        raise TypeError("only whole scale factors are known")
    return input_tensor.repeat_interleave(round(height), 1).repeat_interleave(round(width), 2)
