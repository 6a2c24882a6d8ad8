"""A tensor whose memory has gone back to the allocator is found before ttnn meets it, which would end the process."""

from __future__ import annotations

from typing import Any

from refsim.base.errors import HazardError
from tt_impl.trace.intercept import on_device, tensors_in


class FreedTensor(HazardError, RuntimeError):
    """Memory is used after it was freed. A ``RuntimeError`` too, as ttnn's own: programs may expect one."""


_HARMLESS = ("ttnn.deallocate", "ttnn.Tensor.deallocate", "ttnn.Tensor.__repr__")


def check_allocated(name: str, arguments: Any) -> None:
    """Refuse a tensor among the arguments of the operation ``name`` whose buffer is gone: ``FreedTensor``.

    A view of such a tensor still calls itself allocated, but its memory has gone back to the allocator.
    """
    if name in _HARMLESS:
        return
    for tensor in tensors_in(arguments):
        if on_device(tensor) and (not tensor.is_allocated() or tensor.buffer_unique_id() is None):
            shape, dtype = tuple(tensor.shape), tensor.dtype.name
            raise FreedTensor(f"{name} uses a {dtype} tensor of shape {shape} that was deallocated before.")
