"""Modules of other libraries on meta tensors, without the first values that nobody will read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from refsim.timing.read.meta import on_meta as made_on_meta

_FILLS = {getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
_FILLS |= {torch.Tensor.uniform_, torch.Tensor.normal_}


class _Unfilled(TorchFunctionMode):
    """Leaves out what draws first values: on meta it draws none, and takes a third of a module's construction."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _FILLS:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Make what is constructed inside of meta tensors: shapes and dtypes, no values."""
    with made_on_meta(), _Unfilled():
        yield


def empty(shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Make a meta tensor; fp32 unless it is said otherwise."""
    return torch.empty(shape, device="meta", dtype=dtype or torch.float32)
