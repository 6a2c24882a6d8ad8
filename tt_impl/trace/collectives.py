"""The collectives of any ttnn program: which call is one, along which axis, with how many bytes, links and semaphores.

:data:`TABLE` has a row for every operation of ttnn whose devices exchange data over links. What a program's call is, is
read off its arguments, however they are passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ttnn

from tt_impl.trace.graph import tensor_bytes
from tt_impl.trace.intercept import Arguments, Invocation

Semaphore: type = ttnn._ttnn.global_semaphore.global_semaphore
Entry = dict[str, Any]


@dataclass(frozen=True)
class Collective:
    """An operation of ttnn that communicates.

    Attributes:
        kind: what its devices exchange.
        places: names of the arguments that ttnn's documentation lets come by position.
        numbers: names of the whole numbers among its arguments, in order, where places mean different things in
            different overloads.
        part: it does more than this collective.
        compared: refsim's counterpart records it too, and both sides' must agree.
        ring: ttnn takes a ring where the program names no topology.
    """

    kind: str
    places: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    part: bool = False
    compared: bool = False
    ring: bool = False


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_GATHER = "all_gather"
_REDUCE = "reduce_scatter"
_ATTEND = "ring_attention"
_ATTENTION = "scaled_dot_product_attention"
_CUT = _names("input_tensor dim")
_PADDED = _names("input_tensor dim padding_left padding_right padding_mode cluster_axis")
_SENT = _names("input_tensor sender_coord")
_GATHERED = _names("input_tensor persistent_output_buffer dim")
_CONCAT = _names("input_tensor buffer_tensor dim cluster_axis mesh_device multi_device_global_semaphore")
_RMS = _names("input_tensor program_config cluster_axis mesh_device global_semaphore")
_STATISTICS = _names("input_tensor cluster_axis mesh_device multi_device_global_semaphore")
_SEMAPHORES = _names("neighbor_semaphore barrier_semaphore")
_RESHARDED = _names(
    "input_tensor dim output_dim_offset output_dim_shape cluster_axis final_semaphore barrier_semaphore"
)
_PACKETS = _names("input_tensor intermediate_packet_buffer dim cross_device_semaphore subdevice_id cluster_axis")
_GATHERED_MATMUL = _names("input_tensor weight_tensor persistent_output_buffer dim multi_device_global_semaphore")
_MATMUL_REDUCED = _names(
    "input_tensor weight_tensor persistent_intermediate_buffer persistent_output_buffer dim "
    "multi_device_global_semaphore"
)

TABLE = {
    "ttnn.all_broadcast": Collective("all_broadcast"),
    "ttnn.all_gather": Collective(_GATHER, _CUT),
    "ttnn.all_reduce": Collective("all_reduce"),
    "ttnn.all_to_all_combine": Collective("all_to_all_combine"),
    "ttnn.all_to_all_dispatch": Collective("all_to_all_dispatch"),
    "ttnn.broadcast": Collective("broadcast", _SENT),
    "ttnn.fused_rms_minimal": Collective(_GATHER, _RMS, part=True),
    "ttnn.point_to_point": Collective("point_to_point"),
    "ttnn.reduce_scatter": Collective(_REDUCE, _CUT),
    f"ttnn.transformer.exp_ring_joint_{_ATTENTION}": Collective(_ATTEND),
    f"ttnn.transformer.ring_joint_{_ATTENTION}": Collective(_ATTEND, compared=True),
    "ttnn.transformer.ring_mla": Collective(_ATTEND),
} | {
    f"ttnn.experimental.{name}": row
    for name, row in {
        "all_gather_async": Collective(_GATHER, numbers=("dim", "cluster_axis"), compared=True, ring=True),
        "all_gather_async_reversed": Collective(_GATHER, numbers=("dim", "cluster_axis"), ring=True),
        "all_gather_concat": Collective(_GATHER, _CONCAT, part=True),
        "all_gather_matmul_async": Collective(_GATHER, _GATHERED_MATMUL, part=True, ring=True),
        "all_gather_minimal_matmul_async": Collective(_GATHER, part=True, compared=True, ring=True),
        "all_reduce_async": Collective("all_reduce"),
        "all_to_all_async": Collective("all_to_all", ring=True),
        "all_to_all_async_generic": Collective("all_to_all", compared=True, ring=True),
        "all_to_all_dispatch_metadata": Collective("all_to_all_dispatch"),
        "deepseek_moe_reduce_scatter": Collective(_REDUCE),
        "dit_fused_distributed_groupnorm": Collective(_GATHER, part=True),
        "dit_fused_distributed_layernorm": Collective(_GATHER, _STATISTICS, part=True, ring=True),
        "dit_fused_distributed_rmsnorm": Collective(_GATHER, _STATISTICS, part=True, ring=True),
        "llama_all_gather_matmul_async": Collective(_GATHER, part=True),
        "llama_reduce_scatter": Collective(_REDUCE, _PACKETS),
        "llama_rs_create_heads": Collective(_REDUCE, part=True),
        "llama_rs_matmul": Collective(_REDUCE, part=True),
        "matmul_reduce_scatter_async": Collective(_REDUCE, _MATMUL_REDUCED, part=True, ring=True),
        "minimal_matmul_strided_reduce_scatter_async": Collective(_REDUCE, part=True, ring=True),
        "neighbor_pad_async": Collective("neighbor_pad", _PADDED + _SEMAPHORES, compared=True),
        "reduce_scatter_minimal_async": Collective(_REDUCE, numbers=("dim",), compared=True, ring=True),
        "ring_attention_all_gather_async": Collective(_GATHER, _GATHERED),
        "slice_reshard_async": Collective("slice_reshard", _RESHARDED),
        "strided_all_gather_async": Collective(_GATHER, ring=True),
        "strided_all_gather_minimal_matmul_async": Collective(_GATHER, part=True, ring=True),
        "strided_reduce_scatter_async": Collective(_REDUCE, ring=True),
    }.items()
}
"""Every operation by its full name."""
RING_BY_DEFAULT = frozenset(name for name, row in TABLE.items() if row.ring)


def arguments(call: Arguments) -> dict[str, Any]:
    """Return the arguments of any call by name; those by position that have no name here are called ``0``, ``1`` ..."""
    row = TABLE.get(call.name)
    names = row.places if row else ()
    named = {names[i] if i < len(names) else str(i): value for i, value in enumerate(call.args)} | call.kwargs
    if row and row.numbers:
        _name_by_type(named, row.numbers)
    return named


def _name_by_type(named: dict[str, Any], whole: tuple[str, ...]) -> None:
    """Name arguments that came by position by their types; ``whole`` are the names of the whole numbers, in order."""
    numbers = [name for name in named if name.isdigit() and type(named[name]) is int]
    for name in whole:
        if name not in named and numbers:
            named[name] = named.pop(numbers.pop(0))
    for place in [name for name in named if name.isdigit()]:
        value = named[place]
        several = isinstance(value, list) and bool(value)
        first = value[0] if several else value
        if isinstance(value, ttnn.Topology):
            named["topology"] = named.pop(place)
        elif isinstance(first, Semaphore):
            named["multi_device_global_semaphore"] = named.pop(place)
        elif place == "1" and isinstance(first, ttnn.Tensor):
            named["persistent_output_buffers" if several else "persistent_output_buffer"] = named.pop(place)


def collectives(name: str, named: dict[str, Any], inputs: list[ttnn.Tensor]) -> list[Entry]:
    """Return what the operation ``name`` exchanges: one entry, or one per axis where it crosses one after the other.

    Args:
        named: what :func:`arguments` gives.
        inputs: the tensors on devices among them.

    Returns:
        entries with ``collective``, mesh ``axis`` and the ``bytes`` that each device holds before it; ``within`` names
        the operation where the collective is only a part of it.
    """
    row = TABLE.get(name)
    if row is None or not inputs:
        return []
    if row.kind == "neighbor_pad":
        return _borders(named)
    size = sum(tensor_bytes(t.shape, t.dtype.name) for t in _moved(row.kind, named, inputs))
    entry = {"collective": row.kind, "axis": named.get("cluster_axis"), "bytes": int(size)}
    return [entry | {"within": name} if row.part else entry]


def _moved(kind: str, named: dict[str, Any], inputs: list[ttnn.Tensor]) -> list[ttnn.Tensor]:
    if kind == _ATTEND:  # keys and values; a prompt that is cut over the ring travels too
        return inputs[1:3] + (inputs[4:6] if named.get("logical_l") else [])
    several = named.get("input_tensor")
    return list(several) if isinstance(several, list | tuple) else inputs[:1]


def _borders(named: dict[str, Any]) -> list[Entry]:
    """List what the first device of each axis sends: the border to its one neighbour; a dim grows before the next."""
    x, dims, left, right, _, axes = (named[name] for name in _PADDED)
    shape = list(x.shape)
    entries = []
    for dim, before, after, axis in zip(dims, left, right, axes, strict=True):
        border = tensor_bytes(shape, x.dtype.name) / shape[dim] * before
        shape[dim] += before + after
        entries.append({"collective": "neighbor_pad", "axis": axis, "bytes": int(border)})
    return entries


def compared(call: Invocation) -> list[Entry]:
    """Return :func:`collectives` of a call that refsim's counterpart records too; nothing for any other."""
    row = TABLE.get(call.name)
    return collectives(call.name, arguments(call), call.inputs) if row is not None and row.compared else []


def crossings(name: str, named: dict[str, Any], inputs: list[ttnn.Tensor]) -> list[Entry]:
    """Return :func:`collectives` with ``topology`` and ``links``: None where the program leaves them to ttnn.

    ``runs_as`` is the topology that ttnn takes then: it demotes rings over devices that do not close one.
    """
    entries = collectives(name, named, inputs)
    links = links_of(named)
    topology = topology_of(named)
    asked = topology or ("Ring" if name in RING_BY_DEFAULT else None)
    for i, entry in enumerate(entries):
        entry |= {"topology": topology, "links": links[i] if isinstance(links, list | tuple) else links}
        entry["runs_as"] = _demoted(asked, inputs[0], entry["axis"]) if asked == "Ring" else asked
    return entries


def _demoted(topology: str, tensor: ttnn.Tensor, axis: Any) -> str:
    """Return what ttnn makes of a topology for a tensor; the topology itself where ttnn cannot be asked."""
    usable = getattr(ttnn, "get_usable_topology", None)
    if usable is None:
        return topology
    try:
        return usable(tensor, getattr(ttnn.Topology, topology), axis).name
    except (RuntimeError, TypeError):  # no fabric, or no mesh
        return topology


def links_of(named: dict[str, Any]) -> Any:
    """Return how many links a call asks for, by its arguments: a number, a list of one per axis, or None."""
    return named.get("num_links", named.get("num_preferred_links"))


def topology_of(named: dict[str, Any]) -> str | None:
    """Return the name of the topology that a call asks for, by its arguments; None if it leaves that to ttnn."""
    return getattr(named.get("topology"), "name", None)


def received_bytes(call: Invocation) -> int:
    """Return what a device receives over links in ``call``: the other shards, summands of its own one, borders."""
    total = 0.0
    for entry in compared(call):
        shape = tuple(call.inputs[0].device().shape)
        devices = math.prod(shape) if entry["axis"] is None else shape[entry["axis"]]
        if entry["collective"] == "neighbor_pad":
            total += entry["bytes"] * min(2, devices - 1)
        else:
            whole = entry["collective"] in (_GATHER, _ATTEND)
            total += entry["bytes"] * (devices - 1) / (1 if whole else devices)
    return int(total)
