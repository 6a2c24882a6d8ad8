"""What every operation of a program takes on a device: read from a capture of ttnn's graph in which nothing runs.

ttnn builds each program, so circular buffers, cores and kernel settings are the ones a device would get, but neither
dispatches it nor takes memory: the capture is a second execution of the program, apart from the one with values.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import ttnn

from tt_impl.mock.intercept import Invocation, intercepted

_RANGE = re.compile(r"\[(\d+)-(\d+) - (\d+)-(\d+)\]")
_FIDELITY = re.compile(r"math_fidelity=(\w+)")
_FP32 = re.compile(r"fp32_dest_acc_en=(\d)")
_OPAQUE = re.compile(r"<\w+>")
_BYTES = {"BFLOAT16": 2.0, "UINT16": 2.0, "UINT8": 1.0, "BFLOAT8_B": 1088 / 1024, "BFLOAT4_B": 576 / 1024}
_ALLOCATIONS = ("circular_buffer_allocate", "dataflow_buffer_allocate", "scratchpad_allocate")
_SIGN = {"buffer_allocate": 1, "buffer_deallocate": -1}
_PROGRAM = "circular_buffer_deallocate_all"
"""ttnn says so before it lays out the circular buffers of a program: one per device of a collective, else one."""

Settings = dict[str, deque[tuple[str, bool]]]


def capture(run: Callable[[], Any]) -> dict[str, Any]:
    """``run`` without dispatch -> ``optable`` (see :func:`table`) and ``peak_l1``.

    ``peak_l1`` is the most that one core's L1 holds at a time, in bytes: circular buffers, tensors and semaphores.
    (ttnn's ``extract_resource_usage_per_core`` adds up buffers that lie on different cores, and so says more.)
    """
    settings: Settings = defaultdict(deque)

    def handle(call: Invocation) -> Any:
        if (given := call.kwargs.get("compute_kernel_config")) is not None:
            settings[call.name].append((given.math_fidelity.name, given.fp32_dest_acc_en))
        return call.proceed()

    with intercepted(handle):
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
        try:
            run()
        finally:
            graph = ttnn.graph.end_graph_capture()
    rows = table(graph, settings)
    return {"optable": rows, "peak_l1": max((row["cb_bytes"] + row["l1_bytes"] for row in rows), default=0)}


def table(graph: list[dict[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """One row per device operation, in order.

    Row: ``op`` (as the program calls it), ``device_op``, ``fidelity`` and ``fp32_acc`` (None if the operation has no
    such setting), ``programs`` (how many different devices' programs it consists of), ``cores`` (those that hold
    buffers, of the largest program), ``cb_bytes`` (circular and dataflow buffers on the fullest of them),
    ``l1_bytes`` (tensors and semaphores in each core's L1 meanwhile), ``outputs`` (shape, dtype,
    and bytes on one device with the padding of tiles).

    Args:
        settings: compute kernel configs by operation, in order of the calls: some operations hide theirs.
    """
    rows: list[dict[str, Any]] = []
    open_: list[tuple[str, dict[str, Any] | None]] = []
    given: tuple[str, bool] | None = None
    l1 = 0
    for node in graph:
        kind, params = node["node_type"], node["params"]
        if kind == "function_start":
            name = params["name"]
            if not open_:
                given = settings[name].popleft() if settings.get(name) else None
            row = None
            if "program_factory_type" in params:
                row = _row(next((n for n, _ in open_), name), name, node["arguments"], given)
                row["l1_bytes"] = l1
                rows.append(row)
            open_.append((name, row))
        elif kind == "function_end":
            _, row = open_.pop()
            if row is not None:
                row["outputs"] = _tensors(graph, node) or row["outputs"]
            elif open_ and (row := open_[-1][1]) is not None:
                row["outputs"] += _tensors(graph, node)  # created within; of a list of results ttnn says nothing else
        elif kind in _SIGN:
            if params["type"] == "L1":
                l1 += _SIGN[kind] * params["max_size_per_bank"]
                if row := next((r for _, r in open_ if r), None):
                    row["l1_bytes"] = max(row["l1_bytes"], l1)
        elif open_ and (row := open_[-1][1]) is not None:
            if kind == _PROGRAM:
                row["layouts"].append(defaultdict(int))
            elif kind in _ALLOCATIONS and not _borrowed(params):
                for core in _cores(params["core_range_set"]):
                    row["layouts"][-1][core] += params["size"]
    for row in rows:
        layouts = row.pop("layouts")
        row["programs"] = len(layouts)
        row["cores"] = max(map(len, layouts), default=0)
        row["cb_bytes"] = max((size for layout in layouts for size in layout.values()), default=0)
    return rows


def _row(op: str, device_op: str, arguments: list[str], given: tuple[str, bool] | None) -> dict[str, Any]:
    text = arguments[0] if arguments else ""
    fidelity, fp32 = _FIDELITY.search(text), _FP32.search(text)
    if fidelity:
        given = fidelity.group(1), bool(fp32 and int(fp32.group(1)))
    elif not _OPAQUE.fullmatch(text):
        given = None
    shown = given or (None, None)
    return {"op": op, "device_op": device_op, "fidelity": shown[0], "fp32_acc": shown[1], "layouts": [], "outputs": []}


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
