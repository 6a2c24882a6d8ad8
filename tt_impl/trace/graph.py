"""ttnn's graph, read in one place: which device operations calls became, and the memory they took and gave back.

A capture of the graph is a list of nodes in the order of events. An operation of Python (``ttnn.linear``) becomes
device operations (``MatmulDeviceOperation``, ``UnaryDeviceOperation``), each of which is one program, or several, on
the cores:

    function_start                            a function of C++; a device operation has a program factory
      tensor                                  what lies where, from here on
      buffer_allocate, buffer_deallocate      of a bank of DRAM or of L1
      circular_buffer_deallocate_all          the layout of one program begins
        circular_buffer_allocate ...          on some cores
    function_end                              with its results

In a capture without dispatch ttnn builds every program, as a device would get it, but runs none and takes no memory.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ttnn

from tt_impl.trace.intercept import Invocation

MEMORIES = {0: "DRAM", 1: "L1", 3: "L1_SMALL", 4: "TRACE"}
"""Kinds of memory by the number that ttnn's allocator gives them."""
ONCE = frozenset({"ttnn.deallocate", "ttnn.Tensor.deallocate", "ttnn.move", "ttnn.reallocate"})
"""Operations that end an input's life, also in a capture: they cannot be called twice."""
_ELEMENT_BYTES = {"BFLOAT16": 2.0, "UINT16": 2.0, "UINT8": 1.0, "BFLOAT8_B": 1088 / 1024, "BFLOAT4_B": 576 / 1024}
"""By ttnn's name of the dtype; any other has four."""
_UNIT = 32
_FIDELITY = re.compile(r"math_fidelity=(\w+)")
_FP32 = re.compile(r"fp32_dest_acc_en=(\d)")
_OPAQUE = re.compile(r"<\w+>")
_PLACE = re.compile(r"memory_layout=TensorMemoryLayout::(\w+).*?buffer_type=BufferType::(\w+)")
_RANGE = re.compile(r"\[(\d+)-(\d+) - (\d+)-(\d+)\]")

Node = dict[str, Any]
Core = tuple[int, int]
Settings = tuple[str | None, bool | None]
"""Math fidelity and whether sums are kept in fp32; None if the operation has no such setting."""


@dataclass(frozen=True)
class Operand:
    """A tensor of a device operation, on one device. ``memory`` as profilers write it: ``DRAM_INTERLEAVED``."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    memory: str
    number: int = 0

    @property
    def logical(self) -> tuple[int, int, int, int]:
        """Four dims, the leading ones joined, without padding."""
        shape = (1,) * (4 - len(self.shape)) + self.shape
        return (math.prod(shape[:-3]), *shape[-3:])

    @property
    def padded(self) -> tuple[int, int, int, int]:
        """:attr:`logical` with the last two dims as whole tiles if the tensor is tiled."""
        return (*self.logical[:2], *self._whole_tiles(self.logical[2:]))

    @property
    def bytes(self) -> int:
        """What it takes on one device, the padding of tiles included."""
        return int(tensor_bytes((*self.shape[:-2], *self._whole_tiles(self.shape[-2:])), self.dtype))

    @property
    def in_dram(self) -> bool:
        return self.memory.startswith("DRAM_")

    def _whole_tiles(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        tile = ttnn.TILE_SIZE if self.layout == "TILE" else 1
        return tuple(-(-n // tile) * tile for n in dims)


@dataclass
class DeviceOp:
    """A device operation.

    Attributes:
        call: the outermost function it was made in.
        attributes: what ttnn prints of its parameters.
        fidelity, fp32_acc: see :data:`Settings`.
        cached: its program was found in ttnn's cache, not built.
        results: its results, as its end lists them; ``made``: those of the functions that it calls.
        layouts: of each of its programs the bytes of circular and dataflow buffers by core. A collective has a program
            for each device.
        l1, dram: the most bytes of a bank that the capture had taken by then while it was under way.
    """

    call: str
    name: str
    attributes: str
    fidelity: str | None
    fp32_acc: bool | None
    inputs: tuple[Operand, ...]
    cached: bool = False
    results: tuple[Operand, ...] = ()
    made: tuple[Operand, ...] = ()
    layouts: list[dict[Core, int]] = field(default_factory=list)
    l1: int = 0
    dram: int = 0

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """Its results; of an operation that gives a list ttnn names none, but what was made within."""
        return self.results or self.made

    @property
    def cores(self) -> int:
        """How many cores hold buffers, of the largest program."""
        return max(map(len, self.layouts), default=0)

    @property
    def cb_bytes(self) -> int:
        """Bytes of buffers on the fullest core."""
        return max((size for layout in self.layouts for size in layout.values()), default=0)

    @property
    def key(self) -> tuple:
        """What it is, apart from which tensors it has: equal ones are one program."""
        inputs = tuple((t.shape, t.dtype, t.layout, t.memory) for t in self.inputs)
        return self.name, self.attributes, inputs


@dataclass
class Change:
    """Memory taken (``sign`` 1) or given back (-1): ``bytes`` of each bank of ``memory`` at ``address`` of a mesh.

    ``shape`` and ``dtype`` are those of the tensor that comes to lie there, if one does.
    """

    sign: int
    mesh: int
    memory: str
    address: int
    bytes: int
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass
class Graph:
    """What a capture tells.

    Attributes:
        ops: the device operations, in the order in which they began.
        changes: memory taken and given back, in order.
        l1, dram: bytes of a bank that were taken and not given back.
        dram_peak: the most of DRAM at any time, and the outermost function under way when it was first reached.
    """

    ops: list[DeviceOp] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    l1: int = 0
    dram: int = 0
    dram_peak: tuple[int, str] = (0, "")


@contextmanager
def capturing(*, dispatch: bool, calls: bool = False) -> Iterator[list[Node]]:
    """Collect the nodes of what the block calls; they are in the list after it, also if it raises.

    Args:
        dispatch: run programs and take memory.
        calls: note operations of Python as functions, too. ttnn then records their arguments, which takes longer.
    """
    graph = ttnn.graph if calls else ttnn._ttnn.graph
    nodes: list[Node] = []
    graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL if dispatch else ttnn.graph.RunMode.NO_DISPATCH)
    try:
        yield nodes
    finally:
        nodes += graph.end_graph_capture()


def build(call: Invocation) -> Graph:
    """Make a call without dispatch and read what ttnn builds for it."""
    with capturing(dispatch=False) as nodes:
        call.proceed()
    return read(nodes, settings_of(call))


def settings_of(call: Invocation) -> Settings:
    """Return the settings that the program asks for: some operations hide theirs from the graph."""
    config = call.kwargs.get("compute_kernel_config")
    return (None, None) if config is None else (config.math_fidelity.name, config.fp32_dest_acc_en)


def read(nodes: list[Node], settings: Settings = (None, None)) -> Graph:
    """Read a capture; ``settings`` are for operations whose own are not in the graph."""
    reader = _Reader(nodes, settings)
    for node in nodes:
        if (handle := _HANDLERS.get(node["node_type"])) is not None:
            handle(reader, node)
    return reader.graph


def bank_bytes(size: int) -> int:
    """Return what a bank gives for ``size`` bytes: a semaphore of 16 takes the 32 of the allocator's unit."""
    return -(-size // _UNIT) * _UNIT


def tensor_bytes(shape: Iterable[int], dtype: str) -> float:
    """Return the bytes of so many elements, without any padding; blocks of bfloat8_b and bfloat4_b share exponents."""
    return math.prod(shape) * _ELEMENT_BYTES.get(dtype, 4.0)


class _Reader:
    """Reads one node after the other; ``_open`` has the functions under way, those that are device operations too."""

    def __init__(self, nodes: list[Node], settings: Settings) -> None:
        self.graph = Graph()
        self._nodes = nodes
        self._settings = settings
        self._open: list[tuple[str, DeviceOp | None]] = []
        self._empty: dict[tuple[int, int], Change] = {}

    def start(self, node: Node) -> None:
        params = node["params"]
        op = None
        if "program_factory_type" in params:
            outermost = self._open[0][0] if self._open else params["name"]
            text = (node["arguments"] or [""])[0]
            inputs = self._operands(node["input_tensors"])
            cached = params.get("program_cache_hit", False)
            op = DeviceOp(outermost, params["name"], text, *self._settings_in(text), inputs, cached)
            op.l1 = self.graph.l1
            op.dram = self.graph.dram
            self.graph.ops.append(op)
        self._open.append((params["name"], op))

    def end(self, node: Node) -> None:
        _, op = self._open.pop()
        results = self._operands(node["connections"])
        if op is not None:
            op.results = results
        elif (outer := self._innermost()) is not None:
            outer.made += results

    def place(self, node: Node) -> None:
        """Place a tensor's node: it lies in the memory that was last taken at its address."""
        params = node["params"]
        change = self._empty.pop((params["buffer_type"], params["address"]), None) if "address" in params else None
        if change is not None:
            change.shape = _shape(params["shape"])
            change.dtype = _name(params["dtype"])

    def begin_layout(self, node: Node) -> None:
        if (op := self._innermost()) is not None:
            op.layouts.append(defaultdict(int))

    def lay_out(self, node: Node) -> None:
        """Lay a buffer out on some cores; one that lies in the memory of a tensor takes none."""
        params = node["params"]
        op = self._innermost()
        if op is not None and "1" not in (params.get("globally_allocated"), params.get("borrows_memory")):
            for core in _cores(params["core_range_set"]):
                op.layouts[-1][core] += params["size"]

    def _innermost(self) -> DeviceOp | None:
        return self._open[-1][1] if self._open else None

    def change(self, params: dict[str, Any], sign: int) -> None:
        """Take memory (``sign`` 1) or give it back (-1)."""
        kind = params["buffer_type"]
        size = bank_bytes(params["max_size_per_bank"])
        graph = self.graph
        if kind in MEMORIES:
            change = Change(sign, int(params["device_id"]), MEMORIES[kind], int(params["address"]), size)
            graph.changes.append(change)
            if sign > 0:
                self._empty[kind, params["address"]] = change
        if params["type"] == "L1":
            graph.l1 += sign * size
        elif params["type"] == "DRAM":
            graph.dram += sign * size
            if graph.dram > graph.dram_peak[0]:
                graph.dram_peak = graph.dram, self._open[0][0] if self._open else ""
        if (op := next((op for _, op in self._open if op is not None), None)) is not None:
            op.l1 = max(op.l1, graph.l1)
            op.dram = max(op.dram, graph.dram)

    def _settings_in(self, text: str) -> Settings:
        if (fidelity := _FIDELITY.search(text)) is None:
            return self._settings if _OPAQUE.fullmatch(text) else (None, None)
        fp32 = _FP32.search(text)
        return fidelity[1], bool(fp32 and int(fp32[1]))

    def _operands(self, numbers: list[int]) -> tuple[Operand, ...]:
        nodes = (self._nodes[i] for i in numbers)
        return tuple(_operand(node["params"]) for node in nodes if node["node_type"] == "tensor")


_HANDLERS: dict[str, Callable[[_Reader, Node], None]] = {
    "function_start": _Reader.start,
    "function_end": _Reader.end,
    "tensor": _Reader.place,
    "buffer_allocate": lambda reader, node: reader.change(node["params"], 1),
    "buffer_deallocate": lambda reader, node: reader.change(node["params"], -1),
    "circular_buffer_deallocate_all": _Reader.begin_layout,
    "circular_buffer_allocate": _Reader.lay_out,
    "dataflow_buffer_allocate": _Reader.lay_out,
    "scratchpad_allocate": _Reader.lay_out,
}


def _operand(params: dict[str, Any]) -> Operand:
    place = _PLACE.search(params.get("memory_config", ""))
    memory = f"{place[2]}_{place[1]}" if place else "HOST"
    number = int(params.get("tensor_id", 0))
    return Operand(_shape(params["shape"]), _name(params["dtype"]), _name(params["layout"]), memory, number)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _name(text: str) -> str:
    return text.rpartition("::")[2]


def _cores(text: str) -> list[Core]:
    ranges = (map(int, match) for match in _RANGE.findall(text))
    return [(x, y) for x0, y0, x1, y1 in ranges for x in range(x0, x1 + 1) for y in range(y0, y1 + 1)]
