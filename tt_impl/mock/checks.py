"""Calls that the real ttnn cannot take on a mock mesh are refused before they end the process."""

from __future__ import annotations

from typing import Any

from refsim.errors import UserError
from tt_impl.intercept import Invocation

CRASHES_MOCK = frozenset(
    {
        "ttnn.point_to_point",
        "ttnn.experimental.send_async",
        "ttnn.experimental.recv_async",
        "ttnn.begin_trace_capture",
        "ttnn.MeshDevice.load_sub_device_manager",
    }
)
"""Calls that end the process (SIGSEGV in the command writer) on a mock mesh."""


def refuse_crashes(call: Invocation) -> Any:
    """A handler for :func:`tt_impl.intercept.intercepted` that raises ``UserError`` where ttnn would crash."""
    if call.name in CRASHES_MOCK:
        raise UserError(f"{call.name} crashes ttnn on a mock mesh; leave it out there.")
    return call.proceed()
