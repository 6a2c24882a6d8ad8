"""What one call of ttnn did, read off a capture of its graph: memory taken and given back, programs and their tensors.

A capture is a list of nodes in the order of events. An operation of Python (``ttnn.linear``) becomes device operations
(``MatmulDeviceOperation``, ``UnaryDeviceOperation``), each of which is a program on the cores.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from tt_impl.trace.optable import bank_bytes

MEMORIES = {0: "DRAM", 1: "L1", 3: "L1_SMALL", 4: "TRACE"}
"""Kinds of memory by the number that ttnn's allocator gives them."""
_SIGN = {"buffer_allocate": 1, "buffer_deallocate": -1}
_TILE = 32

Node = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """Memory taken (``sign`` 1) or given back (-1): ``bytes`` of each bank of ``memory`` at ``address`` of a mesh."""

    sign: int
    mesh: int
    memory: str
    address: int
    bytes: int
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True)
class Operand:
    """A tensor of a device operation, on one device. ``memory`` as profilers write it: ``DRAM_INTERLEAVED``."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    memory: str
    number: int = 0

    @property
    def padded(self) -> tuple[int, int, int, int]:
        """Four dims, the leading ones joined; the last two as whole tiles if it is tiled."""
        shape = (1,) * (4 - len(self.shape)) + self.shape
        shape = (math.prod(shape[:-3]), *shape[-3:])
        if self.layout != "TILE":
            return shape
        return (*shape[:2], *(-(-n // _TILE) * _TILE for n in shape[2:]))

    @property
    def logical(self) -> tuple[int, int, int, int]:
        """Four dims, the leading ones joined, without padding."""
        shape = (1,) * (4 - len(self.shape)) + self.shape
        return (math.prod(shape[:-3]), *shape[-3:])


@dataclass(frozen=True)
class Program:
    """One device operation as ttnn calls it; ``attributes`` is ttnn's own text of its parameters."""

    device_op: str
    attributes: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]

    @property
    def inputs_key(self) -> tuple:
        """What the inputs are, apart from which tensors."""
        return tuple((t.shape, t.dtype, t.layout, t.memory) for t in self.inputs)


def changes(graph: list[Node]) -> list[Change]:
    """Memory taken and given back, in order; what is taken is told with the tensor that comes to lie there."""
    tensors: dict[tuple[int, int], dict[str, Any]] = {}
    found = []
    for node in reversed(graph):  # backwards, so that the tensor of an address is the next one, not a former one
        kind, params = node["node_type"], node["params"] or {}
        if kind == "tensor" and "address" in params:
            tensors[params["buffer_type"], params["address"]] = params
        elif kind in _SIGN and params["buffer_type"] in MEMORIES:
            held = tensors.pop((params["buffer_type"], params["address"]), {}) if _SIGN[kind] > 0 else {}
            place = int(params["device_id"]), MEMORIES[params["buffer_type"]], int(params["address"])
            what = (_shape(held["shape"]), _name(held["dtype"])) if held else ((), "")
            found.append(Change(_SIGN[kind], *place, bank_bytes(params), *what))
    return found[::-1]


def programs(graph: list[Node]) -> list[Program]:
    """The device operations, in order; of one that gives a list ttnn names no result, but what was made within."""
    found: list[list[Any]] = []
    open_: list[list[Any] | None] = []
    within: dict[int, tuple[Operand, ...]] = {}
    for node in graph:
        if node["node_type"] == "function_start":
            device = "program_factory_type" in node["params"]
            made = [node["params"]["name"], (node["arguments"] or [""])[0], _operands(graph, node["input_tensors"])]
            open_.append(made if device else None)
            if device:
                found.append(made)
        elif node["node_type"] == "function_end":
            made, results = open_.pop(), _operands(graph, node["connections"])
            if made is not None:
                made.append(results or within.pop(id(made), ()))
            elif open_ and (outer := open_[-1]) is not None:
                within[id(outer)] = within.get(id(outer), ()) + results
    return [Program(*made) for made in found if len(made) == 4]


def _operands(graph: list[Node], nodes: list[int]) -> tuple[Operand, ...]:
    return tuple(_operand(graph[i]["params"]) for i in nodes if graph[i]["node_type"] == "tensor")


def _operand(params: dict[str, Any]) -> Operand:
    config = params.get("memory_config", "")
    place = re.search(r"memory_layout=TensorMemoryLayout::(\w+).*?buffer_type=BufferType::(\w+)", config)
    memory = f"{place[2]}_{place[1]}" if place else "HOST"
    layout, number = params["layout"].rpartition("::")[2], int(params.get("tensor_id", 0))
    return Operand(_shape(params["shape"]), _name(params["dtype"]), layout, memory, number)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _name(text: str) -> str:
    return text.rpartition("::")[2]
