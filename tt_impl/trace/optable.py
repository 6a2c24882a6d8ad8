"""What every operation of a program takes on a device, from captures of ttnn's graph made while the program runs.

Each operation is called twice: first inside a capture without dispatch, in which ttnn builds the operation's program
(circular buffers, cores and kernel settings are the ones a device would get) but neither runs it nor takes memory,
then in earnest, with the program that is now in ttnn's cache. That costs half a millisecond an operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ttnn

from tt_impl.trace.collectives import received_bytes
from tt_impl.trace.fused import fuses
from tt_impl.trace.graph import ONCE, DeviceOp, Operand, build, tensor_bytes
from tt_impl.trace.intercept import Invocation, on_device, tensors_in

_HIGHEST = ("l1_bytes", "dram_bytes")

Row = dict[str, Any]


@dataclass
class Levels:
    """What is allocated on a device, in bytes: ``l1`` of each core, ``dram`` of all banks together."""

    l1: int
    dram: int
    dram_banks: int
    dram_total: int

    @classmethod
    def of(cls, device: ttnn.MeshDevice) -> Levels:
        l1 = ttnn.get_memory_view(device, ttnn.BufferType.L1)
        dram = ttnn.get_memory_view(device, ttnn.BufferType.DRAM)
        banks = dram.num_banks
        return cls(
            l1.total_bytes_allocated_per_bank,
            dram.total_bytes_allocated_per_bank * banks,
            banks,
            dram.total_bytes_per_bank * banks,
        )


class OpTable:
    """A handler for :func:`tt_impl.trace.intercept.intercepted`; ``rows`` has what was seen.

    ``rows``: one per different device operation, in order of first use. ``op`` (as the program calls it),
    ``device_op``, ``inputs`` (shapes of the tensors given to ``op``), ``fuses`` (what it does besides, see
    :mod:`tt_impl.trace.fused`), ``outputs`` (shape, dtype, and bytes on one device with the padding of tiles),
    ``read_bytes`` and ``written_bytes`` (of one device's DRAM, every tensor once), ``link_bytes`` (that a device
    receives in a collective), ``fidelity`` and ``fp32_acc`` (None if the operation has no such setting), ``programs``
    (how many different devices' programs it consists of), ``cores`` (those that hold buffers, of the largest program),
    ``cb_bytes`` (circular and dataflow buffers on the fullest of them), ``l1_bytes`` (tensors and semaphores in each
    core's L1 meanwhile), ``dram_bytes`` (of one device, what the operation takes inside itself included), ``count``.
    The last two bytes are the highest of all ``count`` uses.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._peak_dram: tuple[int, str] = (0, "")
        self._dram_total = 0

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def __call__(self, call: Invocation) -> Any:
        inputs = call.inputs
        if not inputs or call.name in ONCE or ttnn.graph.is_graph_capture_active():
            result = call.proceed()
            made = [t for t in tensors_in(result) if on_device(t)]
            if made and not inputs:
                self._reached(Levels.of(made[0].device()), call.name)
            return result
        levels = Levels.of(inputs[0].device())
        shapes = [list(t.shape) for t in inputs]  # before an operation that frees them
        received = received_bytes(call)
        ops = build(call).ops
        for op, more in zip(ops, fuses(call, [op.name for op in ops]), strict=True):
            self._add(_row(op, call, levels) | {"inputs": shapes, "fuses": more, "link_bytes": received})
            received = 0  # counted once, however many device operations the call became
        result = call.proceed()
        self._dram_total = levels.dram_total
        return result

    def _add(self, row: Row) -> None:
        key = str([value for name, value in row.items() if name not in _HIGHEST])
        entry = self._rows.setdefault(key, row | {"count": 0})
        entry["count"] += 1
        for name in _HIGHEST:
            entry[name] = max(entry[name], row[name])

    def _reached(self, levels: Levels, name: str) -> None:
        self._dram_total = levels.dram_total
        self._peak_dram = max(self._peak_dram, (levels.dram, name))

    def summary(self) -> dict[str, Any]:
        """Numbers of the whole program.

        ``operations`` and how many ``different`` ones; ``fidelities``: operations by fidelity; ``cores``: the most
        that one uses; ``peak_l1``: the most that one core's L1 holds at a time (circular buffers, tensors,
        semaphores) and the operation that does it; ``peak_dram``: the same of one device's DRAM, and its ``total``.
        (ttnn's ``extract_resource_usage_per_core`` adds up buffers that lie on different cores, and so says more.)
        """
        rows = self.rows
        fidelities: Counter[str] = Counter()
        for row in rows:
            fidelities[row["fidelity"] or "none"] += row["count"]
        l1, l1_op = max(((row["cb_bytes"] + row["l1_bytes"], row["op"]) for row in rows), default=(0, ""))
        dram, dram_op = max([self._peak_dram, *((row["dram_bytes"], row["op"]) for row in rows)])
        return {
            "operations": sum(row["count"] for row in rows),
            "different": len(rows),
            "fidelities": dict(fidelities),
            "cores": max((row["cores"] for row in rows), default=0),
            "peak_l1": {"bytes": l1, "op": l1_op},
            "peak_dram": {"bytes": dram, "op": dram_op, "total": self._dram_total},
        }


def _row(op: DeviceOp, call: Invocation, levels: Levels) -> Row:
    """Return what ``op`` takes; ``levels`` are those before the call that it is a part of."""
    written = _in_dram(op.results) or _in_dram(op.made)
    # An input that is a result as well is memory given to write to.
    read = sum(size for tensor, size in _in_dram(op.inputs).items() if tensor not in written)
    row = {
        "op": call.name,
        "device_op": op.name,
        "fidelity": op.fidelity,
        "fp32_acc": op.fp32_acc,
        "outputs": [{"shape": list(t.shape), "dtype": t.dtype, "bytes": t.bytes} for t in op.outputs],
        "l1_bytes": levels.l1 + op.l1,
        "dram_bytes": levels.dram + op.dram * levels.dram_banks,
        "read_bytes": read,
        "written_bytes": sum(written.values()),
        "programs": len(op.layouts),
        "cores": op.cores,
        "cb_bytes": op.cb_bytes,
    }
    if call.name in _SCRATCH:
        name, size = _SCRATCH[call.name]
        row[name] += size(row, call)
    return row


def _in_dram(tensors: tuple[Operand, ...]) -> dict[int, int]:
    """Bytes on one device by the number that the graph gives a tensor, of those that lie in DRAM."""
    return {tensor.number: tensor.bytes for tensor in tensors if tensor.in_dram}


_SCRATCH: dict[str, tuple[str, Callable[[Row, Invocation], int]]] = {
    "ttnn.experimental.all_gather_minimal_matmul_async": (
        "read_bytes", lambda row, call: _buffer_bytes(call, "persistent_output_buffer"),
    ),
    "ttnn.transformer.ring_joint_scaled_dot_product_attention": (
        "written_bytes", lambda row, call: sum(_buffer_bytes(call, f"persistent_output_buffer_{n}") for n in "kv"),
    ),
    "ttnn.experimental.reduce_scatter_minimal_async": (
        "read_bytes", lambda row, call: row["written_bytes"] - row["outputs"][-1]["bytes"],
    ),
}  # fmt: skip
"""The other half of what an operation both writes and reads: what it gathers, or sums on its way.

ttnn lists the buffer of a gathering matmul among its results, that of ring attention among its inputs, and the partial
sums of a reduce-scatter as all of its results but the last.
"""


def _buffer_bytes(call: Invocation, argument: str) -> int:
    """Bytes on one device of a tensor of whole tiles, if the call was given one."""
    buffer = call.kwargs.get(argument)
    return 0 if buffer is None else int(tensor_bytes(buffer.padded_shape, buffer.dtype.name))
