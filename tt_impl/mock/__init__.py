"""A TTNN mesh without hardware, for any program that uses ``ttnn``.

    from tt_impl.mock import ttnn_mock

    with ttnn_mock("t3k") as mesh_device:  # a ttnn.MeshDevice
        ...                                # your own calls of ttnn; what is read back are real values

* ``ttnn_mock(mesh)`` opens a mesh by the name that ``refsim meshes`` lists.
* ``prepare(mesh)`` only sets the environment, before ttnn opens anything: for programs that open their meshes.
* ``shadow_values()`` gives values to what is called in its block; ``ttnn_mock`` includes it.

ttnn itself builds every program with all its checks. Beside it each device's values are computed in torch, operation
by operation, so a program that passes has its cuts, axes, head orders, paddings and collectives right. Kernels are not
run: their numerics, races and speed are not shown. An operation whose value is not known is an error that names it.

Nothing here knows of refsim's models, and importing this package imports neither ``ttnn`` nor ``torch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_impl.mock.calls.shadow import Shadow, shadow_values
    from tt_impl.mock.hardware import prepare, ttnn_mock
    from tt_impl.mock.storage.errors import MissingRule, RefusedOption, ShadowError, UnseenValue

_HOMES = {
    name: home
    for home, names in {
        "hardware": ("prepare", "ttnn_mock"),
        "calls.shadow": ("Shadow", "shadow_values"),
        "storage.errors": ("MissingRule", "RefusedOption", "ShadowError", "UnseenValue"),
    }.items()
    for name in names
}

__all__ = [
    "MissingRule",
    "RefusedOption",
    "Shadow",
    "ShadowError",
    "UnseenValue",
    "prepare",
    "shadow_values",
    "ttnn_mock",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tt_impl.mock' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"tt_impl.mock.{_HOMES[name]}"), name)
