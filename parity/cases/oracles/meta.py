"""Modules of other libraries on meta tensors, without the first values that nobody will read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FILLS = {getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")} | {
    torch.Tensor.uniform_,
    torch.Tensor.normal_,
}


class _Unfilled(TorchFunctionMode):
    """Leaves out what draws first values: on meta it draws none, and takes a third of a module's construction."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _FILLS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Make what is constructed inside of meta tensors: shapes and dtypes, no values."""
    with torch.device("meta"), _Unfilled():
        yield


def empty(shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """A meta tensor; fp32 unless it is said otherwise."""
    return torch.empty(shape, device="meta", dtype=dtype or torch.float32)
