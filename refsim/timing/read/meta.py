"""Shapes and dtypes of what aten calls give, without torch's Python code for tensors on ``meta``.

That code imports torch._dynamo before its first call, two seconds, and takes half a millisecond a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import (
    compute_elementwise_output_strides,
    make_contiguous_strides_for,
    suggest_memory_format,
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


_OF_INTEGERS = {"add", "floor_divide", "mul", "neg", "pow", "remainder", "square", "sub"}
_ELEMENTWISE = _OF_INTEGERS | {"cos", "div", "exp", "gelu", "rsqrt", "sigmoid", "silu", "sin"}
"""aten calls that give a tensor of their inputs' common shape and promoted dtype, some of them integers of integers."""
_IN_PLACE = {"lerp_", "sub_"}


class Quick(TorchDispatchMode):
    """Has calls that models are made of answered here, all others by torch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to ask torch._dynamo to stay away costs its import

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "arange":
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


Known = tuple[list[int], tuple[int, ...], torch.dtype]


def tensors_of(args: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors among a call's arguments, those in lists among them."""
    return [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, Tensor)]


def _of_elements(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> Known:
    alike = torch.broadcast_tensors(*tensors)
    dtype = torch.result_type(*args[:2]) if len(args) > 1 else tensors[0].dtype
    if not dtype.is_floating_point and name not in _OF_INTEGERS:
        dtype = torch.get_default_dtype()
    return list(alike[0].shape), compute_elementwise_output_strides(*alike), dtype


def _of_others(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> Known | None:
    """Return shape, strides and dtype of what a call gives; None where torch has to say so."""
    shape = list(tensors[0].shape)
    if name == "linear":
        shape[-1] = args[1].shape[0]
    elif name == "outer":
        shape += tensors[1].shape
    elif name == "mean" and args[2:] == (True,):
        for dim in args[1]:
            shape[dim] = 1
    elif name == "stack":
        shape.insert(args[1] % (len(shape) + 1) if len(args) > 1 else 0, len(tensors))
    elif name == "cat" and any(suggest_memory_format(t) is torch.contiguous_format for t in tensors):
        dim = args[1] if len(args) > 1 else 0
        shape[dim] = sum(t.shape[dim] for t in tensors)
    elif name not in ("layer_norm", "log_sigmoid"):
        return None
    return shape, make_contiguous_strides_for(shape), reduce(torch.promote_types, (t.dtype for t in tensors))
