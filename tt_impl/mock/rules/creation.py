"""Tensors that operations make from numbers."""

from __future__ import annotations

from typing import Any

import torch
import ttnn
from torch import Tensor

from tt_impl.mock.rules.registry import Call, per_device
from tt_impl.mock.storage.dtypes import INTEGERS

Number = int | float


def _whole(dtype: ttnn.DataType) -> torch.dtype:
    return torch.int64 if dtype in INTEGERS else torch.float32


@per_device("arange")
def arange(*limits: int, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """Count as ``arange(end)`` or ``arange(start, end, step)`` in torch."""
    if end is None:
        start, end, step = (*limits, step)[:3] if len(limits) > 1 else (start or 0, *limits, step)
    elif limits:
        start = limits[0]
    return torch.arange(start or 0, end, step)


@per_device("moreh_arange", with_call=True)
def moreh_arange(
    call: Call,
    start: Number = 0,
    end: Number | None = None,
    step: Number = 1,
    *_device: Any,
    untilize_out: bool = False,
) -> Tensor:
    (out,) = call.outputs
    return torch.arange(start, end, step, dtype=_whole(out.dtype)).reshape(tuple(out.shape))


@per_device("moreh_full", with_call=True)
def moreh_full(call: Call, shape: Any, fill_value: Number, *_device: Any) -> Tensor:
    return torch.full(tuple(shape), fill_value, dtype=_whole(call.outputs[0].dtype))


@per_device("moreh_full_like", with_call=True)
def moreh_full_like(call: Call, input: Tensor, fill_value: Number, *_as: Any) -> Tensor:
    return moreh_full(call, input.shape, fill_value)


@per_device("fill_rm")
def fill_rm(
    N: int,
    C: int,
    H: int,
    W: int,
    hOnes: int,
    wOnes: int,
    any: Any,
    val_hi: float,
    val_lo: float,
) -> Tensor:
    """Fill [N, C, H, W] with ``val_lo``, and with ``val_hi`` the first ``hOnes`` rows and ``wOnes`` columns."""
    value = torch.full((N, C, H, W), float(val_lo))
    value[..., :hOnes, :wOnes] = val_hi
    return value


@per_device("fill_ones_rm")
def fill_ones_rm(*sizes: Any, **named: Any) -> Tensor:
    return fill_rm(*sizes, val_hi=1.0, val_lo=0.0, **named)
