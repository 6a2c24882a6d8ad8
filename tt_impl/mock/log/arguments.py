"""The arguments of a call as an event log keeps them: tensors by place, everything else as JSON values."""

from __future__ import annotations

import enum
from typing import Any

import ttnn

from tt_impl.trace.buffers import buffer_of
from tt_impl.trace.collectives import Semaphore
from tt_impl.trace.intercept import on_device

_SHOWN = 16
"""Of a longer list only its length is noted."""


def options_of(named: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments but tensors, as JSON values; ``semaphores`` has the addresses of all of them."""
    options = {name: plain(value) for name, value in named.items() if not isinstance(value, ttnn.Tensor)}
    if semaphores := [address for value in named.values() for address in _semaphores(value)]:
        options["semaphores"] = semaphores
    return options


def _semaphores(value: Any) -> list[int]:
    if isinstance(value, Semaphore):
        return [ttnn.get_global_semaphore_address(value)]
    if isinstance(value, list | tuple) and len(value) <= _SHOWN:
        return [address for item in value for address in _semaphores(item)]
    return []


def plain(value: Any) -> Any:
    """Turn an argument into a JSON value: names of enums, addresses of semaphores, else the name of its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Semaphore):
        return ttnn.get_global_semaphore_address(value)
    if isinstance(value, ttnn.MeshTraceId):
        return int(value)
    if isinstance(value, ttnn.Tensor):
        return f"buffer {buffer_of(value)}" if on_device(value) and value.is_allocated() else "host tensor"
    if isinstance(value, ttnn.MemoryConfig):
        return f"{value.buffer_type.name} {value.memory_layout.name}"
    if isinstance(value, ttnn.Shape | ttnn.MeshShape):
        return [int(n) for n in value]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value] if len(value) <= _SHOWN else f"{len(value)} values"
    if (fidelity := getattr(value, "math_fidelity", None)) is not None:
        return {"math_fidelity": fidelity.name, "fp32_dest_acc_en": getattr(value, "fp32_dest_acc_en", None)}
    return type(value).__name__
