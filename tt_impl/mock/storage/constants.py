"""Tensors that hold one number: the memory of one element, expanded to their shape, as long as nobody computes on it.

``ttnn.empty`` and ``ttnn.zeros`` of a GiB are so; what is written in place replaces the whole tensor, so the expanded
element is never written to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

_BEYOND_FLOAT = 2.0**128 - 2.0**103
"""From here on a number is rounded to more than float32 has."""


def as_in_c(value: Any) -> Any:
    """Return what C++ gets of a float of Python, a ``float``: infinity beyond its range; anything else as it is."""
    return math.copysign(math.inf, value) if isinstance(value, float) and abs(value) >= _BEYOND_FLOAT else value


def constant(number: float, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    """Return ``number`` in every place of ``shape``."""
    return torch.full((), number, dtype=dtype).expand(tuple(shape))


def single(value: torch.Tensor) -> torch.Tensor | None:
    """Return the one element, without dims, of which ``value`` is an expansion; None if it is none."""
    if value.numel() < 2 or any(step and size > 1 for size, step in zip(value.shape, value.stride(), strict=True)):
        return None
    return value[(0,) * value.dim()]


def elementwise(function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Return ``function``, which changes no shape, of ``value``: of one element if it holds one number."""
    one = single(value)
    return function(value) if one is None else function(one).expand(value.shape)


def joined(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """Concatenate along ``dim``; parts that are expansions of one element are one expansion."""
    elements = [single(part) for part in parts]
    first = elements[0]
    if first is None or any(one is None or one.data_ptr() != first.data_ptr() for one in elements):
        return torch.cat(list(parts), dim)
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return first.expand(shape)
