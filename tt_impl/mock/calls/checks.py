"""Calls that the real ttnn cannot take on a mock mesh are refused before they end the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ttnn

from refsim.base.errors import UserError
from tt_impl.trace.intercept import Invocation

CRASHES_MOCK = frozenset(
    f"ttnn.{name}"
    for name in """
    MeshDevice.load_sub_device_manager begin_trace_capture experimental.recv_async experimental.send_async
    point_to_point record_event
    """.split()
)
"""Calls that end the process (SIGSEGV in the command writer) on a mock mesh."""


_emulators = 0


@contextmanager
def emulating() -> Iterator[None]:
    """Note that, while it is open, somebody answers these calls without asking ttnn: nobody has to refuse them."""
    global _emulators
    _emulators += 1
    try:
        yield
    finally:
        _emulators -= 1


def refuse_crashes(call: Invocation) -> Any:
    """Raise ``UserError`` where ttnn would crash, and say how to start a fabric where it misses one.

    A handler for :func:`tt_impl.trace.intercept.intercepted`.
    """
    if call.name in CRASHES_MOCK and not _emulators:
        raise UserError(
            f"{call.name} crashes ttnn on a mock mesh; it is emulated where values are computed (shadow_values)."
        )
    if on_some_devices(call) and not _emulators:
        raise UserError(
            f"{call.name} with mesh_coords of some devices crashes ttnn on a mock mesh; it is emulated where values "
            "are computed (shadow_values)."
        )
    try:
        return call.proceed()
    except RuntimeError as error:
        if _NO_FABRIC in str(error):
            raise RuntimeError(str(error).replace(_NO_FABRIC, f"{_NO_FABRIC}; {_SET_FABRIC}")) from error
        raise


_NO_FABRIC = "Trying to get un-initialized fabric context"
_SET_FABRIC = (
    "collectives need a fabric: call ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D) before the mesh is opened, or "
    'give device_params {"fabric_config": ...}'
)


def on_some_devices(call: Invocation) -> bool:
    """Tell whether a program is for a part of the mesh: the command writer tells the rest, which ends the process."""
    chosen = call.kwargs.get("mesh_coords")
    if not chosen or not isinstance(call.args[0] if call.args else None, ttnn.Tensor):
        return False
    return len(set(map(tuple, chosen))) < len(call.args[0].device_coords())
