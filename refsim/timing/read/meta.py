"""Shapes and dtypes of what aten calls give, without torch's Python code for tensors on ``meta``.

That code imports torch._dynamo before its first call, two seconds, and takes half a millisecond a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._prims_common import (
    compute_elementwise_output_strides,
)
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def on_meta() -> Iterator[None]:
    """Make tensors on ``meta`` while it is open.

    torch lists the functions that make tensors once, when a device is first used so, and transformers loads models with
    some of them replaced: a list that was made then misses the real ones, so it is made anew.
    """
    _device._device_constructors.cache_clear()
    with torch.device("meta"):
        yield


_OF_INTEGERS = {"add", "clamp", "clamp_min", "floor_divide", "mul", "neg", "pow", "remainder", "square", "sub"}
_ELEMENTWISE = _OF_INTEGERS | {
    "clamp",
    "clamp_min",
    "cos",
    "div",
    "exp",
    "gelu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "tanh",
}
"""aten calls that give a tensor of their inputs' common shape and promoted dtype, some of them integers of integers."""
_IN_PLACE = {"lerp_", "sub_"}
_RANGES = {"arange", "linspace"}
_OVER_DIMS = {"linalg_vector_norm", "mean", "sum"}
"""Reductions whose last two arguments are dims and whether these are kept, as 1."""


class Quick(TorchDispatchMode):
    """Has calls that models are made of answered here, all others by torch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to ask torch._dynamo to stay away costs its import

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _RANGES:
            return func(*args, **{**kwargs, "device": "cpu"}).to("meta")
        tensors = tensors_of(args)
        if not tensors or not all(t.is_meta for t in tensors):
            return func(*args, **kwargs)
        if name in _IN_PLACE:
            return tensors[0]
        known = _of_elements(name, args, tensors) if name in _ELEMENTWISE else _of_others(name, args, tensors)
        if known is None:
            return func(*args, **kwargs)
        shape, strides, dtype = known
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


Known = tuple[Sequence[int], tuple[int, ...], torch.dtype]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor; torch's own functions import its compiler to find them."""
    strides = accumulate((max(size, 1) for size in reversed(shape[1:])), mul, initial=1)
    return tuple(strides)[::-1] if shape else ()


def tensors_of(args: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors among a call's arguments, those in lists among them."""
    return [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, Tensor)]


def _of_elements(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> Known:
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    others = [a for a in args[1:] if a is not None]
    dtype = torch.result_type(args[0], others[0]) if others else tensors[0].dtype
    if not dtype.is_floating_point and name not in _OF_INTEGERS:
        dtype = torch.get_default_dtype()
    if all(t.is_contiguous() for t in tensors):
        return shape, contiguous(shape), dtype  # broadcasting has strides of 0, which put no dim before another
    return shape, compute_elementwise_output_strides(*torch.broadcast_tensors(*tensors)), dtype


def _of_others(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> Known | None:
    """Return shape, strides and dtype of what a call gives; None where torch has to say so."""
    shape = list(tensors[0].shape)
    if name == "linear":
        shape[-1] = args[1].shape[0]
    elif name == "outer":
        shape += tensors[1].shape
    elif name == "scaled_dot_product_attention" and any(mask is not None for mask in args[3:4]):
        shape[-1] = args[2].shape[-1]  # without a mask it is a kernel that gives other strides
    elif name in _OVER_DIMS and args[-1] is True and tensors[0].is_floating_point():
        for dim in args[-2]:
            shape[dim] = 1
    elif name == "stack":
        shape.insert(args[1] % (len(shape) + 1) if len(args) > 1 else 0, len(tensors))
    elif name == "cat" and any(t.is_contiguous() for t in tensors):
        dim = args[1] if len(args) > 1 else 0
        shape[dim] = sum(t.shape[dim] for t in tensors)
    elif name not in ("layer_norm", "log_sigmoid"):
        return None
    return shape, contiguous(shape), reduce(torch.promote_types, (t.dtype for t in tensors))
