"""What a program asked of ttnn: every operation as it is called, and the collectives with axis and bytes."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import ttnn

from tt_impl.trace.intercept import Invocation, on_device, tensors_in

_COLLECTIVES = {
    "ttnn.experimental.all_gather_async": "all_gather",
    "ttnn.experimental.reduce_scatter_minimal_async": "reduce_scatter",
    "ttnn.experimental.all_to_all_async_generic": "all_to_all",
    "ttnn.experimental.neighbor_pad_async": "neighbor_pad",
    "ttnn.transformer.ring_joint_scaled_dot_product_attention": "ring_attention",
}
_FUSED = {"ttnn.experimental.all_gather_minimal_matmul_async": "all_gather"}
"""Operations that are a collective and a matmul in one."""
BYTES = {ttnn.bfloat16: 2.0, ttnn.float32: 4.0, ttnn.bfloat8_b: 1088 / 1024, ttnn.bfloat4_b: 576 / 1024}


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
        if inputs and (found := collectives(call, inputs)):
            entry["collectives"] = found
        result = call.proceed()
        outputs = [t for t in tensors_in(result) if on_device(t)]
        if inputs or outputs:
            entry["outputs"] = [list(t.shape) for t in outputs]
            entry["dtype"] = str(outputs[0].dtype).rpartition(".")[2] if outputs else None
            self.ops.append(entry)
        return result

    def collectives(self) -> list[dict[str, Any]]:
        """The collectives in order: name, mesh axis, bytes a device of the first row and column brings to it.

        An op that crosses both axes, one after the other, is a collective on each.
        """
        return [entry for op in self.ops for entry in op.get("collectives", ())]


def collectives(call: Invocation, inputs: list[ttnn.Tensor]) -> list[dict[str, Any]]:
    """Name, mesh axis and the bytes each device holds before it, of each collective that ``call`` on ``inputs`` is.

    ``within`` names the operation where the collective is only a part of it.
    """
    if (part := _FUSED.get(call.name)) is not None:
        size = math.prod(inputs[0].shape) * BYTES.get(inputs[0].dtype, 4.0)
        axis = call.kwargs.get("cluster_axis")
        return [{"collective": part, "axis": axis, "bytes": int(size), "within": call.name}]
    name = _COLLECTIVES.get(call.name)
    if name is None:
        return []
    if name == "neighbor_pad":
        return _borders(call)
    moved = inputs[1:3] if name == "ring_attention" else inputs[:1]
    if name == "ring_attention" and call.kwargs.get("logical_l"):
        moved += inputs[4:6]  # a prompt that is cut over the ring travels too
    size = sum(math.prod(t.shape) * BYTES.get(t.dtype, 4.0) for t in moved)
    return [{"collective": name, "axis": call.kwargs.get("cluster_axis"), "bytes": int(size)}]


def _borders(call: Invocation) -> list[dict[str, Any]]:
    """What the first device of each axis sends: the border to the one neighbour it has; a dim grows before the next."""
    x, dims, left, right, _mode, axes = call.args[:6]
    shape, found = list(x.shape), []
    for dim, before, after, axis in zip(dims, left, right, axes, strict=True):
        border = BYTES.get(x.dtype, 4.0) * math.prod(shape) / shape[dim] * before
        shape[dim] += before + after
        found.append({"collective": "neighbor_pad", "axis": axis, "bytes": int(border)})
    return found


def received_bytes(call: Invocation, inputs: list[ttnn.Tensor]) -> int:
    """What a device receives over links in ``call``: the other shards, the other summands of its own one, borders."""
    total = 0.0
    for found in collectives(call, inputs):
        shape = tuple(inputs[0].device().shape)
        devices = math.prod(shape) if found["axis"] is None else shape[found["axis"]]
        if found["collective"] == "neighbor_pad":
            total += found["bytes"] * min(2, devices - 1)
        else:
            whole = found["collective"] in ("all_gather", "ring_attention")
            total += found["bytes"] * (devices - 1) / (1 if whole else devices)
    return int(total)
