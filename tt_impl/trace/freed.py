"""A tensor whose memory has gone back to the allocator is found before ttnn meets it, which would end the process."""

from __future__ import annotations

from refsim.base.errors import HazardError
from tt_impl.trace.buffers import buffer_of
from tt_impl.trace.intercept import Invocation


class FreedTensor(HazardError, RuntimeError):
    """Memory is used after it was freed. A ``RuntimeError`` too, as ttnn's own: programs may expect one."""


_HARMLESS = ("ttnn.deallocate", "ttnn.Tensor.deallocate", "ttnn.Tensor.__repr__")


def check_allocated(call: Invocation) -> None:
    """Refuse a tensor among the arguments of ``call`` whose buffer is gone: ``FreedTensor``.

    A view of such a tensor still calls itself allocated, but its memory has gone back to the allocator.
    """
    if call.name in _HARMLESS:
        return
    for tensor in call.inputs:
        if not tensor.is_allocated() or buffer_of(tensor) is None:
            shape = tuple(tensor.shape)
            dtype = tensor.dtype.name
            raise FreedTensor(f"{call.name} uses a {dtype} tensor of shape {shape} that was deallocated before.")
