"""The one place where calls of ttnn are caught: handlers that see every operation before it runs, on any kind of mesh.

Caught are all registered operations (``FastOperation.__call__``, C++ and Python alike), the methods of
``ttnn.Tensor`` that make or read tensors, and the few plain functions that do. A handler gets the call and decides
when, and whether, it proceeds; handlers nest, the first one installed is asked first. What an operation calls inside
itself is not seen, except for operations named in ``TRANSPARENT``, which are nothing but calls of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ttnn
from ttnn.decorators import FastOperation

TENSOR = ttnn.Tensor
"""The class of ttnn's tensors; while calls are caught, ``ttnn.Tensor`` is a name that stands for it."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TRANSPARENT = frozenset({"ttnn.as_tensor", "ttnn.Tensor.__getitem__"})

METHODS = _names("""
    __repr__ cpu deallocate extract_shard item pad pad_to_tile reshape to to_list to_numpy to_torch
    to_torch_with_padded_shape unpad unpad_from_tile
""")
DEVICE_METHODS = _names("""
    clear_loaded_sub_device_manager create_submesh create_submeshes load_sub_device_manager remove_sub_device_manager
    reset_sub_device_stall_group set_sub_device_stall_group
""")
FILES = tuple(f"{action}_{what}" for action in ("dump", "load") for what in ("tensor_flatbuffer", "overlapped_tensors"))
TO_ONE_DEVICE = tuple(n for n in ("experimental_to_single_device",) if hasattr(ttnn._ttnn.tensor, n))  # 0.80 has none
FUNCTIONS = _names("""
    aggregate_tensor begin_trace_capture combine_device_tensors create_socket_pair distribute_tensor end_trace_capture
    event_synchronize execute_trace is_trace_capture_active prepare_conv_bias prepare_conv_transpose2d_bias
    prepare_conv_transpose2d_weights prepare_conv_weights record_event release_trace wait_for_event
""")
NATIVE = ("fusion_dispatch_op",)
"""Functions of ``ttnn._ttnn.operations.experimental`` that programs call themselves, and that write into tensors."""
MARKS = ("create_global_semaphore", "reset_global_semaphore_value", "synchronize_device")
"""Functions that handle no tensors, but order what does."""


@dataclass
class Arguments:
    """An operation's full name and what it was given."""

    name: str
    args: tuple
    kwargs: dict[str, Any]

    @cached_property
    def inputs(self) -> list[ttnn.Tensor]:
        """All tensors on devices among the arguments, those in nested lists, tuples and dicts too, in order."""
        return [tensor for tensor in tensors_in((self.args, self.kwargs)) if on_device(tensor)]

    @property
    def meshes(self) -> list[ttnn.MeshDevice]:
        """The open meshes among the arguments themselves."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, ttnn.MeshDevice)]

    def named(self, *names: str) -> dict[str, Any]:
        """Return the arguments by name, given the names of the first ones by position."""
        return dict(zip(names, self.args, strict=False)) | self.kwargs

    def argument(self, name: str, position: int) -> Any:
        """Return what the caller passed, by keyword or by position; None if nothing."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else None


@dataclass
class Invocation(Arguments):
    """One call, as a handler gets it, and ``proceed`` to let it happen."""

    original: Callable[..., Any]

    def proceed(self) -> Any:
        return self.original(*self.args, **self.kwargs)


Handler = Callable[[Invocation], Any]

_handlers: list[Handler] = []
_nearest: list[Handler] = []
_originals: dict[tuple[Any, str], Any] = {}
_inside = 0


@contextmanager
def intercepted(handler: Handler, first: bool = False, nearest: bool = False) -> Iterator[None]:
    """Send every call of ttnn through ``handler`` while the block runs.

    ``first`` puts it before all others, ``nearest`` behind all, those too that are installed later: next to ttnn.
    """
    if not _handlers:
        _patch()
    _handlers.insert(0 if first else len(_handlers) - (0 if nearest else len(_nearest)), handler)
    if nearest:
        _nearest.append(handler)
    try:
        yield
    finally:
        _handlers.remove(handler)
        if nearest:
            _nearest.remove(handler)
        if not _handlers:
            _unpatch()


@contextmanager
def uncaught() -> Iterator[None]:
    """Let calls made in the block go straight to ttnn: for handlers that use ttnn themselves."""
    global _inside
    _inside += 1
    try:
        yield
    finally:
        _inside -= 1


def installed(kind: type) -> Any | None:
    """Find the innermost object of a class that is a handler, or one of whose methods is; None if there is none."""
    owners = (getattr(handler, "__self__", handler) for handler in reversed(_handlers))
    return next((owner for owner in owners if isinstance(owner, kind)), None)


def _dispatch(name: str, original: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    if _inside or not _handlers or name in TRANSPARENT:
        return original(*args, **kwargs)
    call = original
    for handler in reversed(_handlers):
        call = _through(handler, name, call)
    with uncaught():
        return call(*args, **kwargs)


def _through(handler: Handler, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: handler(Invocation(name, args, kwargs, inner))


def _patch() -> None:
    fast_call = FastOperation.__call__

    def operation(self: FastOperation, *args: Any, **kwargs: Any) -> Any:
        def original(*a: Any, **k: Any) -> Any:
            return fast_call(self, *a, **k)

        return _dispatch(self.python_fully_qualified_name, original, args, kwargs)

    _replace(FastOperation, "__call__", operation)
    for owner, prefix, names in (
        (TENSOR, "ttnn.Tensor.", METHODS),
        (ttnn.MeshDevice, "ttnn.MeshDevice.", DEVICE_METHODS),
        (ttnn, "ttnn.", FUNCTIONS + MARKS),
        (ttnn._ttnn.tensor, "ttnn.", FILES + TO_ONE_DEVICE),
    ):
        for name in names:
            _replace(owner, name, caught(prefix + name, getattr(owner, name)))
    for name in NATIVE:
        if hasattr(ttnn._ttnn.operations.experimental, name):  # the previous ttnn has other ones
            original = getattr(ttnn._ttnn.operations.experimental, name)
            _replace(ttnn._ttnn.operations.experimental, name, caught(f"ttnn.experimental.{name}", original))
    _replace(ttnn, "Tensor", _CaughtConstructor("Tensor", (), {}))


class _CaughtConstructor(type):
    """``ttnn.Tensor`` under another roof: the constructor of the class itself, which is ttnn's own, cannot be patched.

    Attributes, ``isinstance`` and ``issubclass`` are those of the class; calling it makes one of its tensors.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _dispatch("ttnn.Tensor", TENSOR, args, kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, TENSOR)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, TENSOR)

    def __getattr__(cls, name: str) -> Any:
        return getattr(TENSOR, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(TENSOR, name, value)


def caught(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``original`` as an operation: its calls go through the handlers under ``name``."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return _dispatch(name, original, args, kwargs)

    return function


def _replace(owner: Any, name: str, replacement: Any) -> None:
    _originals[owner, name] = getattr(owner, name)
    setattr(owner, name, replacement)


def _unpatch() -> None:
    for (owner, name), original in _originals.items():
        setattr(owner, name, original)
    _originals.clear()


class Remembered:
    """A device tensor as somebody remembers it who does not keep its memory: it passes for one among arguments."""


COMPLEX = ttnn._ttnn.operations.complex.ComplexTensor
"""A tensor of complex numbers: two tensors, ``real`` and ``imag``."""
_TENSORS = (TENSOR, Remembered)
_NESTED = (list, tuple, dict, COMPLEX)
_HOLDERS = (*_TENSORS, *_NESTED)


def tensors_in(value: Any) -> list[ttnn.Tensor]:
    """Every ttnn tensor in nested lists, tuples, dicts and complex tensors, in order."""
    if isinstance(value, _TENSORS):
        return [value]
    if isinstance(value, COMPLEX):
        return [value.real, value.imag]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    tensors: list[ttnn.Tensor] = []
    for item in items:
        if isinstance(item, _TENSORS):
            tensors.append(item)
        elif isinstance(item, _NESTED):
            tensors += tensors_in(item)
    return tensors


def tensors_at(name: str, value: Any) -> list[tuple[str, ttnn.Tensor]]:
    """List tensors with the place of each in the argument called ``name``: ``name``, ``name[1]``, ``name[key]``."""
    tensors: list[tuple[str, ttnn.Tensor]] = []
    _collect(name, value, tensors)
    return tensors


def _collect(place: str, value: Any, tensors: list[tuple[str, ttnn.Tensor]]) -> None:
    if isinstance(value, _TENSORS):
        tensors.append((place, value))
    elif isinstance(value, COMPLEX):
        tensors += [(f"{place}.real", value.real), (f"{place}.imag", value.imag)]
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, _HOLDERS):
                _collect(f"{place}[{key}]", item, tensors)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            if isinstance(item, _HOLDERS):
                _collect(f"{place}[{number}]", item, tensors)


def on_device(tensor: ttnn.Tensor) -> bool:
    return tensor.storage_type() == ttnn.StorageType.DEVICE
