"""Tensors that operations make from numbers."""

from __future__ import annotations

from typing import Any

import torch
import ttnn
from torch import Tensor

from tt_impl.mock.rules.registry import Call, across
from tt_impl.mock.storage.dtypes import INTEGERS

Number = int | float


def _whole(dtype: ttnn.DataType) -> torch.dtype:
    return torch.int64 if dtype in INTEGERS else torch.float32


@across("arange")
def arange(call: Call, *limits: int, start: int | None = None, end: int | None = None, step: int = 1) -> list[Tensor]:
    """Count as ``arange(end)`` or ``arange(start, end, step)`` in torch."""
    if end is None:
        start, end, step = (*limits, step)[:3] if len(limits) > 1 else (start or 0, *limits, step)
    elif limits:
        start = limits[0]
    return call.each(lambda: torch.arange(start or 0, end, step))


@across("moreh_arange")
def moreh_arange(
    call: Call,
    start: Number = 0,
    end: Number | None = None,
    step: Number = 1,
    *_device: Any,
    untilize_out: bool = False,
) -> list[Tensor]:
    assert end is not None
    values = torch.arange(start, end, step, dtype=_whole(call.outputs[0].dtype))
    return call.each(lambda: values.reshape(tuple(call.outputs[0].shape)))


@across("moreh_full")
def moreh_full(call: Call, shape: Any, fill_value: Number, *_device: Any) -> list[Tensor]:
    return call.each(lambda: torch.full(tuple(shape), fill_value, dtype=_whole(call.outputs[0].dtype)))


@across("moreh_full_like")
def moreh_full_like(call: Call, input: Any, fill_value: Number, *_as: Any) -> list[Tensor]:
    return moreh_full(call, input.shape, fill_value)


@across("fill_rm")
def fill_rm(
    call: Call,
    N: int,
    C: int,
    H: int,
    W: int,
    hOnes: int,
    wOnes: int,
    any: Any,
    val_hi: float = 1.0,
    val_lo: float = 0.0,
) -> list[Tensor]:
    """Fill [N, C, H, W] with ``val_lo``, and with ``val_hi`` the first ``hOnes`` rows and ``wOnes`` columns."""
    value = torch.full((N, C, H, W), float(val_lo))
    value[..., :hOnes, :wOnes] = val_hi
    return call.each(lambda: value)


@across("fill_ones_rm")
def fill_ones_rm(call: Call, *sizes: int, **named: Any) -> list[Tensor]:
    return fill_rm(call, *sizes, **named)
