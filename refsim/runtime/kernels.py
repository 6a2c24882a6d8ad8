"""Ops that are one kernel on a device and several calls of torch here, and what computes them in place of those.

    layer --> @kernel("rms_norm") function --> torch                          as a rule
                                           '-> DeviceRounding.kernel(...)     in a run with ``device_numerics``

What is one call of torch as well (``F.linear``, ``F.gelu``, a sum of two tensors) needs no mark:
``refsim.runtime.rounding`` sees it as a torch function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Kernels(Protocol):
    """What computes ops in place of torch."""

    def kernel(self, name: str, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return what the op ``name`` gives for these arguments; ``function`` is what computes it in torch."""


_active: Kernels | None = None


def kernel(name: str) -> Callable[[_Function], _Function]:
    """Mark a function on local tensors as the op ``name`` of a device."""

    def mark(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _active is None:
                return function(*args, **kwargs)
            return _active.kernel(name, function, args, kwargs)

        return cast(_Function, call)

    return mark


@contextmanager
def in_place_of_torch(kernels: Kernels) -> Iterator[None]:
    """Let ``kernels`` compute what is marked, in this process, until the block ends."""
    global _active
    before = _active
    _active = kernels
    try:
        yield
    finally:
        _active = before
