"""What a program asked of ttnn: every operation as it is called, and the collectives with axis and bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tt_impl.trace.collectives import compared
from tt_impl.trace.intercept import Invocation, on_device, tensors_in


class Recorder:
    """A handler for :func:`tt_impl.trace.intercept.intercepted` that keeps one entry per device operation.

    ``last_op`` is a file whose first line always names the operation under way, so that a crash of the process can be
    blamed.
    """

    def __init__(self, last_op: Path | None = None) -> None:
        self.ops: list[dict[str, Any]] = []
        # Open as long as the recorder is: to open a file for every operation takes longer than many operations.
        self._last_op = None if last_op is None else last_op.open("wb", buffering=0)

    def __call__(self, call: Invocation) -> Any:
        inputs = call.inputs
        shapes = [list(t.shape) for t in inputs]
        if self._last_op is not None:
            os.pwrite(self._last_op.fileno(), f"{call.name} on {shapes}\n".encode(), 0)  # in one step
        entry: dict[str, Any] = {"op": call.name, "inputs": shapes}
        if collectives := compared(call):
            entry["collectives"] = collectives
        result = call.proceed()
        outputs = [t for t in tensors_in(result) if on_device(t)]
        if inputs or outputs:
            entry["outputs"] = [list(t.shape) for t in outputs]
            entry["dtype"] = str(outputs[0].dtype).rpartition(".")[2] if outputs else None
            self.ops.append(entry)
        return result

    def collectives(self) -> list[dict[str, Any]]:
        """List the collectives in order: name, mesh axis, bytes a device of the first row and column brings to it.

        An op that crosses both axes, one after the other, is a collective on each.
        """
        return [entry for op in self.ops for entry in op.get("collectives", ())]
