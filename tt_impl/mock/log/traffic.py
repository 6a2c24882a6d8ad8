"""The collectives of any ttnn program: which call is one, along which axis, with how many bytes, links and semaphores.

:func:`tt_impl.trace.record.collectives` knows the operations of this project's own programs; here are ttnn's others,
however their arguments are passed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ttnn

from tt_impl.trace.intercept import Invocation
from tt_impl.trace.record import BYTES, collectives

Semaphore: type = ttnn._ttnn.global_semaphore.global_semaphore

_OTHERS = {
    "ttnn.all_gather": "all_gather",
    "ttnn.all_broadcast": "all_broadcast",
    "ttnn.all_reduce": "all_reduce",
    "ttnn.all_to_all_combine": "all_to_all_combine",
    "ttnn.all_to_all_dispatch": "all_to_all_dispatch",
    "ttnn.broadcast": "broadcast",
    "ttnn.point_to_point": "point_to_point",
    "ttnn.reduce_scatter": "reduce_scatter",
    "ttnn.experimental.all_reduce_async": "all_reduce",
    "ttnn.experimental.all_to_all_async": "all_to_all",
    "ttnn.experimental.all_to_all_dispatch_metadata": "all_to_all_dispatch",
    "ttnn.experimental.deepseek_moe_reduce_scatter": "reduce_scatter",
    "ttnn.experimental.llama_reduce_scatter": "reduce_scatter",
    "ttnn.experimental.ring_attention_all_gather_async": "all_gather",
    "ttnn.experimental.slice_reshard_async": "slice_reshard",
    "ttnn.experimental.strided_all_gather_async": "all_gather",
    "ttnn.experimental.strided_reduce_scatter_async": "reduce_scatter",
    "ttnn.transformer.exp_ring_joint_scaled_dot_product_attention": "ring_attention",
    "ttnn.transformer.ring_mla": "ring_attention",
}
_PARTS = {
    "ttnn.experimental.all_gather_concat": "all_gather",
    "ttnn.experimental.all_gather_matmul_async": "all_gather",
    "ttnn.experimental.dit_fused_distributed_groupnorm": "all_gather",
    "ttnn.experimental.dit_fused_distributed_layernorm": "all_gather",
    "ttnn.experimental.dit_fused_distributed_rmsnorm": "all_gather",
    "ttnn.experimental.llama_all_gather_matmul_async": "all_gather",
    "ttnn.experimental.llama_reduce_scatter_create_heads": "reduce_scatter",
    "ttnn.experimental.llama_rs_matmul": "reduce_scatter",
    "ttnn.experimental.matmul_reduce_scatter_async": "reduce_scatter",
    "ttnn.experimental.minimal_matmul_strided_reduce_scatter_async": "reduce_scatter",
    "ttnn.experimental.strided_all_gather_minimal_matmul_async": "all_gather",
    "ttnn.fused_rms_minimal": "all_gather",
}
"""Operations that do more than the collective they contain."""
_PADDED = ("input_tensor", "dim", "padding_left", "padding_right", "padding_mode", "cluster_axis")
_POSITIONS: dict[str, tuple[str, ...]] = {
    "ttnn.all_gather": ("input_tensor", "dim"),
    "ttnn.reduce_scatter": ("input_tensor", "dim"),
    "ttnn.broadcast": ("input_tensor", "sender_coord"),
    "ttnn.experimental.neighbor_pad_async": (*_PADDED, "neighbor_semaphore", "barrier_semaphore"),
    "ttnn.experimental.ring_attention_all_gather_async": ("input_tensor", "persistent_output_buffer", "dim"),
    "ttnn.experimental.slice_reshard_async": (
        "input_tensor", "dim", "output_dim_offset", "output_dim_shape", "cluster_axis", "final_semaphore",
        "barrier_semaphore",
    ),
    "ttnn.experimental.matmul_reduce_scatter_async": (
        "input_tensor", "weight_tensor", "persistent_intermediate_buffer", "persistent_output_buffer", "dim",
        "multi_device_global_semaphore",
    ),
    "ttnn.experimental.all_gather_matmul_async": (
        "input_tensor", "weight_tensor", "persistent_output_buffer", "dim", "multi_device_global_semaphore",
    ),
    "ttnn.experimental.llama_reduce_scatter": (
        "input_tensor", "intermediate_packet_buffer", "dim", "cross_device_semaphore", "subdevice_id", "cluster_axis",
    ),
    "ttnn.experimental.all_gather_concat": (
        "input_tensor", "buffer_tensor", "dim", "cluster_axis", "mesh_device", "multi_device_global_semaphore",
    ),
    "ttnn.fused_rms_minimal": ("input_tensor", "program_config", "cluster_axis", "mesh_device", "global_semaphore"),
}  # fmt: skip
"""Names of arguments that ttnn's documentation lets come by position."""
_OVERLOADED = {
    "ttnn.experimental.all_gather_async": ("dim", "cluster_axis"),
    "ttnn.experimental.all_gather_async_reversed": ("dim", "cluster_axis"),
    "ttnn.experimental.reduce_scatter_minimal_async": ("dim",),
}
"""Operations whose places mean different things in different overloads, and their whole numbers."""


def arguments(call: Invocation) -> dict[str, Any]:
    """Arguments by name; those by position that have no name here are called ``0``, ``1``, ..."""
    names = _POSITIONS.get(call.name, ())
    named = {names[i] if i < len(names) else str(i): value for i, value in enumerate(call.args)}
    named |= call.kwargs
    if call.name in _OVERLOADED:
        _by_type(named, _OVERLOADED[call.name])
    return named


def _by_type(named: dict[str, Any], whole: tuple[str, ...]) -> None:
    """Name arguments that came by position by their types; ``whole`` are the names of the whole numbers, in order."""
    numbers = [name for name in named if name.isdigit() and type(named[name]) is int]
    for name in whole:
        if name not in named and numbers:
            named[name] = named.pop(numbers.pop(0))
    for name in [name for name in named if name.isdigit()]:
        value = named[name]
        if isinstance(value, ttnn.Topology):
            named["topology"] = named.pop(name)
        elif isinstance(value, Semaphore) or (isinstance(value, list) and value and isinstance(value[0], Semaphore)):
            named["multi_device_global_semaphore"] = named.pop(name)
        elif name == "1" and isinstance(value, ttnn.Tensor):
            named["persistent_output_buffer"] = named.pop(name)
        elif name == "1" and isinstance(value, list) and value and isinstance(value[0], ttnn.Tensor):
            named["persistent_output_buffers"] = named.pop(name)


def crossings(call: Invocation, named: dict[str, Any], inputs: list[ttnn.Tensor]) -> list[dict[str, Any]]:
    """What :func:`tt_impl.trace.record.collectives` says, for any operation of ttnn, with ``topology`` and ``links``.

    ``named`` is what :func:`arguments` gives, ``inputs`` are the tensors on devices among them. ``topology`` and
    ``links`` are None where the program leaves them to ttnn.
    """
    if not inputs:
        return []
    if call.name == "ttnn.experimental.neighbor_pad_async":
        call = dataclasses.replace(call, args=tuple(named[name] for name in _PADDED))
    found = collectives(call, inputs) or _other(call.name, named, inputs)
    links = named.get("num_links", named.get("num_preferred_links"))
    topology = getattr(named.get("topology"), "name", None)
    for i, entry in enumerate(found):
        if entry["axis"] is None:
            entry["axis"] = named.get("cluster_axis")
        per_axis = isinstance(links, list | tuple)
        entry |= {"topology": topology, "links": links[i] if per_axis else links}
    return found


def _other(name: str, named: dict[str, Any], inputs: list[ttnn.Tensor]) -> list[dict[str, Any]]:
    kind = _OTHERS.get(name) or _PARTS.get(name)
    if kind is None:
        return []
    moved = inputs[:1]
    if kind == "ring_attention":
        moved = inputs[1:3]
    elif isinstance(several := named.get("input_tensor"), list | tuple):
        moved = list(several)
    size = sum(math.prod(t.shape) * BYTES.get(t.dtype, 4.0) for t in moved)
    entry = {"collective": kind, "axis": named.get("cluster_axis"), "bytes": int(size)}
    return [entry | {"within": name} if name in _PARTS else entry]
