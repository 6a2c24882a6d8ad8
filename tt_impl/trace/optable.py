"""What every operation of a program takes on a device, from captures of ttnn's graph made while the program runs.

Each operation is called twice: first inside a capture without dispatch, in which ttnn builds the operation's program
(circular buffers, cores and kernel settings are the ones a device would get) but neither runs it nor takes memory,
then in earnest, with the program that is now in ttnn's cache. That costs half a millisecond an operation.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import ttnn
from ttnn._ttnn.graph import begin_graph_capture, end_graph_capture  # ttnn.graph's own warn, and record arguments

from tt_impl.trace.fused import fuses
from tt_impl.trace.intercept import Invocation, on_device, tensors_in
from tt_impl.trace.record import received_bytes

_RANGE = re.compile(r"\[(\d+)-(\d+) - (\d+)-(\d+)\]")
_FIDELITY = re.compile(r"math_fidelity=(\w+)")
_FP32 = re.compile(r"fp32_dest_acc_en=(\d)")
_OPAQUE = re.compile(r"<\w+>")
_BYTES = {"BFLOAT16": 2.0, "UINT16": 2.0, "UINT8": 1.0, "BFLOAT8_B": 1088 / 1024, "BFLOAT4_B": 576 / 1024}
_ALLOCATIONS = ("circular_buffer_allocate", "dataflow_buffer_allocate", "scratchpad_allocate")
SIGN = {"buffer_allocate": 1, "buffer_deallocate": -1}
"""What a node of a capture does to the level of a kind of memory."""
_UNIT = 32
"""Bytes; nodes tell what was asked for: a semaphore of 16 bytes takes 32 of the bank."""
_PROGRAM = "circular_buffer_deallocate_all"
"""ttnn says so before it lays out the circular buffers of a program: one per device of a collective, else one."""
_ONCE = frozenset({"ttnn.deallocate", "ttnn.Tensor.deallocate", "ttnn.move", "ttnn.reallocate"})
"""Operations that end an input's life, also in a capture: they cannot be called twice."""
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
        if not inputs or call.name in _ONCE or ttnn.graph.is_graph_capture_active():
            result = call.proceed()
            made = [t for t in tensors_in(result) if on_device(t)]
            if made and not inputs:
                self._reached(Levels.of(made[0].device()), call.name)
            return result
        levels = Levels.of(inputs[0].device())
        shapes = [list(t.shape) for t in inputs]  # before an operation that frees them
        received = received_bytes(call, inputs)
        begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
        try:
            call.proceed()
        finally:
            graph = end_graph_capture()
        rows = table(graph, call.name, _given(call), levels)
        for row, more in zip(rows, fuses(call, [row["device_op"] for row in rows]), strict=True):
            self._add(_with_scratch(row, call) | {"inputs": shapes, "fuses": more, "link_bytes": received})
            received = 0  # counted once, however many device operations the call became
        result = call.proceed()
        self._dram_total = levels.dram_total
        return result

    def _add(self, row: Row) -> None:
        key = str([value for name, value in row.items() if name not in _HIGHEST])
        kept = self._rows.setdefault(key, row | {"count": 0})
        kept["count"] += 1
        for name in _HIGHEST:
            kept[name] = max(kept[name], row[name])

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


def _given(call: Invocation) -> tuple[str, bool] | None:
    """Fidelity and accumulation as the program asks for them: some operations hide theirs from the graph."""
    given = call.kwargs.get("compute_kernel_config")
    return None if given is None else (given.math_fidelity.name, given.fp32_dest_acc_en)


def table(graph: list[dict[str, Any]], op: str | None, given: tuple[str, bool] | None, levels: Levels) -> list[Row]:
    """One row per device operation of one capture of ``op``, in order; ``levels`` are those before it.

    A capture of a whole program has no one operation: with None a row's ``op`` is the outermost call it was made in.
    """
    rows: list[Row] = []
    open_: list[Row | None] = []
    l1, dram, outermost = levels.l1, levels.dram, ""
    for node in graph:
        kind, params = node["node_type"], node["params"]
        if kind == "function_start":
            row = None
            outermost = outermost if open_ else params["name"]
            if "program_factory_type" in params:
                row = _row(op or outermost, params["name"], node["arguments"], given)
                row |= {"l1_bytes": l1, "dram_bytes": dram}
                row["read"] = _in_dram(graph, node["input_tensors"])
                rows.append(row)
            open_.append(row)
        elif kind == "function_end":
            row = open_.pop()
            if row is not None:
                row["outputs"] = _tensors(graph, node) or row["outputs"]
                row["written"] = _in_dram(graph, node["connections"]) or row["written"]
            elif open_ and (row := open_[-1]) is not None:
                row["outputs"] += _tensors(graph, node)  # created within; of a list of results ttnn says nothing else
                row["written"] |= _in_dram(graph, node["connections"])
        elif kind in SIGN:
            size = SIGN[kind] * bank_bytes(params)
            if params["type"] == "L1":
                l1 += size
            elif params["type"] == "DRAM":
                dram += size * levels.dram_banks
            if row := next((r for r in open_ if r), None):
                row["l1_bytes"], row["dram_bytes"] = max(row["l1_bytes"], l1), max(row["dram_bytes"], dram)
        elif open_ and (row := open_[-1]) is not None:
            if kind == _PROGRAM:
                row["layouts"].append(defaultdict(int))
            elif kind in _ALLOCATIONS and not _borrowed(params):
                for core in _cores(params["core_range_set"]):
                    row["layouts"][-1][core] += params["size"]
    for row in rows:
        read, written = row.pop("read"), row.pop("written")
        # An input that is a result as well is memory given to write to.
        row["read_bytes"] = sum(size for tensor, size in read.items() if tensor not in written)
        row["written_bytes"] = sum(written.values())
        layouts = row.pop("layouts")
        row["programs"] = len(layouts)
        row["cores"] = max(map(len, layouts), default=0)
        row["cb_bytes"] = max((size for layout in layouts for size in layout.values()), default=0)
    return rows


def bank_bytes(params: dict[str, Any]) -> int:
    """What a bank gives for an allocation that a node tells of: whole multiples of the allocator's unit."""
    return -(-params["max_size_per_bank"] // _UNIT) * _UNIT


def _row(op: str, device_op: str, arguments: list[str], given: tuple[str, bool] | None) -> Row:
    text = arguments[0] if arguments else ""
    fidelity, fp32 = _FIDELITY.search(text), _FP32.search(text)
    if fidelity:
        given = fidelity.group(1), bool(fp32 and int(fp32.group(1)))
    elif not _OPAQUE.fullmatch(text):
        given = None
    shown = given or (None, None)
    made: Row = {"layouts": [], "outputs": [], "written": {}}
    return {"op": op, "device_op": device_op, "fidelity": shown[0], "fp32_acc": shown[1], **made}


def _in_dram(graph: list[dict[str, Any]], nodes: list[int]) -> dict[int, int]:
    """Bytes on one device by the number that the graph gives a tensor, of those among ``nodes`` that lie in DRAM."""
    tensors = (graph[i]["params"] for i in nodes if graph[i]["node_type"] == "tensor")
    return {t["tensor_id"]: _tensor(t)["bytes"] for t in tensors if "BufferType::DRAM" in t.get("memory_config", "")}


def _with_scratch(row: Row, call: Invocation) -> Row:
    """``row`` with the other half of what the operation both writes and reads: what it gathers, or sums on its way.

    ttnn lists the buffer of a gathering matmul among its results, that of ring attention among its inputs, and the
    partial sums of a reduce-scatter as all of its results but the last.
    """
    name = call.name.rpartition(".")[2]
    if name == "all_gather_minimal_matmul_async":
        return row | {"read_bytes": row["read_bytes"] + _buffer_bytes(call.kwargs.get("persistent_output_buffer"))}
    if name == "ring_joint_scaled_dot_product_attention":
        gathered = sum(_buffer_bytes(call.kwargs.get(f"persistent_output_buffer_{which}")) for which in "kv")
        return row | {"written_bytes": row["written_bytes"] + gathered}
    if name == "reduce_scatter_minimal_async":
        sums = row["written_bytes"] - row["outputs"][-1]["bytes"]
        return row | {"read_bytes": row["read_bytes"] + sums}
    return row


def _buffer_bytes(buffer: ttnn.Tensor | None) -> int:
    """Bytes on one device of a tensor of whole tiles."""
    return 0 if buffer is None else int(math.prod(buffer.padded_shape) * _BYTES.get(buffer.dtype.name, 4.0))


def _tensors(graph: list[dict[str, Any]], end: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of a function, as its end lists them."""
    found = (graph[i] for i in end["connections"])
    return [_tensor(node["params"]) for node in found if node["node_type"] == "tensor"]


def _tensor(params: dict[str, Any]) -> dict[str, Any]:
    shape = [int(n) for n in re.findall(r"\d+", params["shape"])]
    dtype = params["dtype"].rpartition("::")[2]
    padded = list(shape)
    if params["layout"] == "Layout::TILE":
        padded[-2:] = [-(-n // ttnn.TILE_SIZE) * ttnn.TILE_SIZE for n in shape[-2:]]
    return {"shape": shape, "dtype": dtype, "bytes": int(math.prod(padded) * _BYTES.get(dtype, 4.0))}


def _borrowed(params: dict[str, Any]) -> bool:
    """The buffer lies in the memory of a tensor."""
    return "1" in (params.get("globally_allocated"), params.get("borrows_memory"))


def _cores(text: str) -> list[tuple[int, int]]:
    ranges = (map(int, found) for found in _RANGE.findall(text))
    return [(x, y) for x0, y0, x1, y1 in ranges for x in range(x0, x1 + 1) for y in range(y0, y1 + 1)]
