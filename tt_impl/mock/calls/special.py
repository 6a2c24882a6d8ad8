"""Calls that make device tensors from values, read them back or free them: everything that is no computation.

Writing: the same call is made a second time without the device, so that ttnn's own mapper, layout and rounding say what
each device gets. Reading: the values become a host tensor, which the real call then reads instead of the zeros of the
mock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import ttnn

from refsim.base.errors import UserError
from tt_impl.mock.calls.draws import RANDOM
from tt_impl.mock.calls.stand_ins import EMULATED, Emulating, proceed
from tt_impl.mock.calls.traces import EMULATED_TRACES, Tracing
from tt_impl.mock.storage.buffers import Window
from tt_impl.mock.storage.dtypes import BLOCK_FLOATS
from tt_impl.mock.storage.errors import MissingRule, ShadowError, UnknownPadding
from tt_impl.mock.storage.host import copy_into, host_padding, host_shards, host_tensor
from tt_impl.mock.storage.seeded import real
from tt_impl.mock.storage.values import ProgramValues, Store, describe, filled, view_of
from tt_impl.trace.buffers import buffer_of
from tt_impl.trace.intercept import MARKS, TENSOR, Invocation, on_device

Special = Callable[[ProgramValues, Invocation], Any]
_PLACES = ("device", "memory_config", "mem_config", "cq_id")
"""Keywords that send a tensor to a device, or say where on it."""


def touches_device(call: Invocation) -> bool:
    """Tell whether a device or a tensor on one is among the arguments."""
    return bool(call.inputs or call.meshes)


def _from_torch(shadow: ProgramValues, call: Invocation) -> Any:
    """Convert twice, to the device and to the host: the host copy went through the real mapper and rounding."""
    call = _in_rows(call)
    result = call.proceed()
    if result is not None and on_device(result):
        host = _on_host(_without_tiles(call))
        _write(shadow.store, host, result, call.name, call.kwargs.get("pad_value") or 0.0)
    return result


def _in_rows(call: Invocation) -> Invocation:
    """Draw random weights, and put the elements in the order of rows, once for both conversions."""
    tensor = call.argument("tensor", 0)
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        return call
    rows = real(tensor).contiguous()
    if rows is tensor:
        return call
    if call.args:
        return replace(call, args=(rows, *call.args[1:]))
    return replace(call, kwargs=call.kwargs | {"tensor": rows})


def _without_tiles(call: Invocation) -> Invocation:
    """Leave tiles out where an element's value does not depend on its tile: what fills them up is told apart."""
    decides = ("spec", "tile", "col_tilize")
    dtype = call.argument("dtype", 1)
    if dtype in BLOCK_FLOATS or "layout" not in call.kwargs or any(call.kwargs.get(name) for name in decides):
        return call
    return replace(call, kwargs=call.kwargs | {"layout": ttnn.ROW_MAJOR_LAYOUT})


def _on_host(call: Invocation, device: tuple[None, ...] = ()) -> ttnn.Tensor:
    """Make the call without a device, with ``device`` in place of one."""
    args = [value for a in call.args for value in (device if isinstance(a, ttnn.MeshDevice) else (a,))]
    return call.original(*args, **{k: v for k, v in call.kwargs.items() if k not in _PLACES})


def _to_device(shadow: ProgramValues, call: Invocation) -> Any:
    source = call.argument("tensor", 0)
    result = call.proceed()
    if not on_device(source):
        _write(shadow.store, source, result, call.name)
    return result


def _to_one_device(shadow: ProgramValues, call: Invocation) -> Any:
    host = call.argument("host_tensor", 0)
    result = call.proceed()
    shadow.store.write(result, host_shards(host, 1), call.name, host_padding(host))
    return result


def _write(store: Store, host: ttnn.Tensor, device: ttnn.Tensor, writer: str, padding: float | None = None) -> None:
    """Have the device tensor hold what the host tensor does."""
    fills = host_padding(host) if padding is None else padding
    store.write(device, host_shards(host, device.device().get_num_devices()), writer, fills)


def _to_host(shadow: ProgramValues, call: Invocation) -> Any:
    """Call to_torch, from_device and the like on a host tensor of the values instead of the zeros of the mock."""
    source, *rest = call.args or (call.kwargs.get("tensor"),)
    if not isinstance(source, TENSOR) or not on_device(source) or not source.is_allocated():
        return call.proceed()
    host = _read(shadow, source, call.name)
    if call.name in ("ttnn.from_device", "ttnn.Tensor.cpu"):
        return host
    kwargs = {k: v for k, v in call.kwargs.items() if k not in ("tensor", "device", "cq_id")}
    return call.original(host, *rest, **kwargs)


def _read(shadow: ProgramValues, tensor: ttnn.Tensor, reader: str) -> ttnn.Tensor:
    """Make a host tensor of the values of ``tensor``, tiles filled up as on the device."""
    padding = shadow.store.padding(tensor, reader)
    return host_tensor(tensor, shadow.store.read(tensor, reader), padding)


def limits_on_host(shadow: Tracing, call: Invocation) -> Invocation:
    """Give ``ttnn.slice`` host tensors for limits that it reads before it cuts: those of rows, or with steps."""
    arguments = call.named("input_tensor", "starts", "ends", "slice_step")
    limits = [arguments.get(name) for name in ("starts", "ends")]
    limits = [value for value in limits if isinstance(value, TENSOR) and on_device(value)]
    if not limits:
        return call
    on_tiles = arguments["input_tensor"].layout == ttnn.TILE_LAYOUT
    if on_tiles and all(step == 1 for step in arguments.get("slice_step") or ()):
        return call
    shadow.check_traced("ttnn.from_device")
    read = {id(limit): _read(shadow, limit, call.name) for limit in limits}
    args = tuple(read.get(id(value), value) for value in call.args)
    return replace(call, args=args, kwargs={name: read.get(id(value), value) for name, value in call.kwargs.items()})


def _padded_to_host(shadow: ProgramValues, call: Invocation) -> Any:
    """Call ``to_torch_with_padded_shape``, for which it must be known what fills the tiles up."""
    source = call.args[0]
    if not on_device(source):
        return call.proceed()
    view = view_of(source)
    if view.shape != view.padded and shadow.store.padding(source, call.name) is None:
        raise UnknownPadding(call.name, describe(source))
    return call.original(_read(shadow, source, call.name), *call.args[1:], **call.kwargs)


def _deallocate(shadow: Emulating, call: Invocation) -> Any:
    tensor = call.argument("tensor", 0)
    buffer = buffer_of(tensor) if on_device(tensor) and tensor.is_allocated() else None
    queue = shadow.queues.of(call.inputs)
    result = call.proceed()
    if not tensor.is_allocated():
        if queue is None:
            shadow.store.values.pop(buffer, None)
        else:
            queue.steps.append((None, lambda: shadow.store.values.pop(buffer, None)))
    return result


def _copy_to_device(shadow: ProgramValues, call: Invocation) -> Any:
    result = call.proceed()
    _write(shadow.store, call.argument("host_tensor", 0), call.argument("device_tensor", 1), call.name)
    return result


def _copy_to_host(shadow: ProgramValues, call: Invocation) -> Any:
    result = call.proceed()
    copy_into(call.argument("host_tensor", 1), _read(shadow, call.argument("device_tensor", 0), call.name))
    return result


def _dump(shadow: ProgramValues, call: Invocation) -> Any:
    """Write the values to the file."""

    def read(value: Any) -> Any:
        on_mesh = isinstance(value, TENSOR) and on_device(value)
        return _read(shadow, value, call.name) if on_mesh else value

    return call.original(*map(read, call.args), **{k: read(v) for k, v in call.kwargs.items()})


def _load(shadow: ProgramValues, call: Invocation) -> Any:
    """Load the file twice, to the device and to the host."""
    result = call.proceed()
    if on_device(result):
        _write(shadow.store, _on_host(call), result, call.name)
    return result


def _dump_overlapped(shadow: ProgramValues, call: Invocation) -> Any:
    """Write the values of one tensor that holds several to the file, once, with its views."""
    arguments = call.named("file_name", "views")
    fused = {buffer_of(view.fused_tensor): view.fused_tensor for view in arguments["views"].values()}
    if not all(map(on_device, fused.values())):
        return call.proceed()
    hosts = {buffer: _read(shadow, tensor, call.name) for buffer, tensor in fused.items()}
    views = {
        name: type(view)(hosts[buffer_of(view.fused_tensor)], *(getattr(view, field) for field in _OF_A_VIEW))
        for name, view in arguments["views"].items()
    }
    return call.original(arguments["file_name"], views)


_OF_A_VIEW = ("tensor_shape", "shard_shape", "core_range_set", "dtype", "tile_shape", "byte_offset", "total_size")


def _load_overlapped(shadow: ProgramValues, call: Invocation) -> Any:
    views = call.proceed()
    host = call.original(call.argument("file_name", 0))
    for name, view in views.items():
        if on_device(view.fused_tensor):
            _write(shadow.store, host[name].fused_tensor, view.fused_tensor, call.name)
    return views


def _narrow(shadow: ProgramValues, call: Invocation) -> Any:
    """Give a part of the memory of the input; both go on sharing it."""
    names = ("input_tensor", "dim", "start", "length")
    arguments = call.named(*names)
    source, *rows = (arguments[name] for name in names)
    result = call.proceed()
    if tuple(result.shape) != tuple(source.shape):
        shadow.store.add_window(result, Window(view_of(source), *rows))
    return result


def _fill(value: float | None) -> Special:
    """Make zeros, ones and the like; None takes the call's fill value, NaN stands for memory nobody has written."""

    def special(shadow: ProgramValues, call: Invocation) -> Any:
        result = call.proceed()
        if result is not None and on_device(result):
            number = call.argument("fill_value", 1) if value is None else value
            padding = None if number != number else number  # ttnn fills whole tiles
            shadow.store.fill(result, filled(result, number), call.name, padding)
        return result

    return special


def _from_buffer(shadow: ProgramValues, call: Invocation) -> Any:
    """Fill a tensor with a list of numbers in row-major order."""
    result = call.proceed()
    if on_device(result):
        value = torch.as_tensor(call.argument("buffer", 0)).reshape(tuple(result.shape))
        shadow.store.fill(result, value, call.name)
    return result


def _constructed(shadow: ProgramValues, call: Invocation) -> Any:
    """Make ``ttnn.Tensor(...)`` twice, on the device and on the host."""
    result = call.proceed()
    if not on_device(result) or (call.args and isinstance(call.args[0], TENSOR)):  # a tensor of a tensor shares it
        return result
    _write(shadow.store, _on_host(call, (None,)), result, call.name, call.kwargs.get("pad_value") or 0.0)
    return result


def _method_to(shadow: ProgramValues, call: Invocation) -> Any:
    """Call ``Tensor.to``: host to device, or to another layout where the tensor is."""
    source = call.args[0]
    if call.meshes:
        return _to_device(shadow, call)
    if not on_device(source):
        return call.proceed()
    layout = call.argument("target_layout", 1)
    if not isinstance(layout, ttnn.Layout):
        raise MissingRule(call.name)
    read = shadow.store.read(source, call.name)
    result = ttnn.to_layout(source, layout)
    if buffer_of(result) != buffer_of(source):
        shadow.store.write(result, list(read), call.name, padding=0.0 if layout == ttnn.TILE_LAYOUT else None)
    return result


_NOBODY = float("nan")
_BUFFERS = [
    f"experimental.dit_fused_distributed_{norm}_create_stats_buffer" for norm in ("groupnorm", "rmsnorm", "layernorm")
]
_SPECIAL: list[tuple[Special, str]] = [
    (_from_torch, "from_torch distribute_tensor"),
    (_to_device, "to_device"),
    (_to_one_device, "experimental_to_single_device"),
    (_to_host, "to_torch from_device aggregate_tensor"),
    (_to_host, "Tensor.__repr__ Tensor.cpu Tensor.item Tensor.to_list Tensor.to_numpy Tensor.to_torch"),
    (_padded_to_host, "Tensor.to_torch_with_padded_shape"),
    (_constructed, "Tensor"),
    (_method_to, "Tensor.to"),
    (_deallocate, "deallocate Tensor.deallocate"),
    (_copy_to_device, "copy_host_to_device_tensor"),
    (_copy_to_host, "copy_device_to_host_tensor"),
    (_dump, "dump_tensor dump_tensor_flatbuffer"),
    (_load, "load_tensor load_tensor_flatbuffer"),
    (_dump_overlapped, "dump_overlapped_tensors"),
    (_load_overlapped, "load_overlapped_tensors"),
    (_from_buffer, "from_buffer"),
    (_narrow, "narrow"),
    (proceed, "allocate_tensor_on_host combine_device_tensors complex_tensor"),
    (proceed, "MeshDevice.create_submesh MeshDevice.create_submeshes"),
    (proceed, " ".join(MARKS)),
    (_fill(0.0), "zeros zeros_like"),
    (_fill(1.0), "ones ones_like"),
    (_fill(None), "full full_like"),
    (_fill(_NOBODY), " ".join(["empty empty_like allocate_tensor_on_device", *_BUFFERS])),
]
SPECIAL: dict[str, Special] = {
    **{f"ttnn.{name}": special for special, names in _SPECIAL for name in names.split()},
    **RANDOM,
    **EMULATED_TRACES,
    **EMULATED,
}
WITHOUT_VALUES: dict[str, Special] = {**EMULATED_TRACES, **EMULATED}
"""What ttnn cannot do on a mock mesh, with values or without."""
READS = frozenset(name for name, special in SPECIAL.items() if special in (_to_host, _padded_to_host, _copy_to_host))

_WAITS_ON_HOST = {
    f"ttnn.{name}"
    for special, names in _SPECIAL
    for name in names.split()
    if special in (_to_host, _padded_to_host, _copy_to_host, _dump, _dump_overlapped)
} | {"ttnn.event_synchronize", "ttnn.synchronize_device"}
_RUNS_AT_ONCE = {
    f"ttnn.{name}"
    for special, names in _SPECIAL
    for name in names.split()
    if special not in (_copy_to_device, _method_to, _narrow)
} | {
    f"ttnn.{name}" for name in ("record_event", "wait_for_event", "experimental.recv_async", "experimental.send_async")
}


def check_queue(shadow: Any, call: Invocation) -> None:
    """Refuse a special call on devices that wait in a receive, unless it makes new values or joins their queue.

    Raises:
        UserError: the host would wait for devices that wait for the host.
        ShadowError: on a device it joins the queue; here it does not.
    """
    if call.name in _RUNS_AT_ONCE - _WAITS_ON_HOST:
        return
    queue = shadow.queues.of(call.inputs, call.meshes)
    if queue is None:
        return
    if call.name in _WAITS_ON_HOST:
        raise UserError(
            f"{call.name} waits for devices that wait in {queue.reader} for a send that was not made: on a device "
            "that hangs; call send_async before."
        )
    raise ShadowError(f"{call.name} has no values on devices that wait in {queue.reader}; call it after the send.")
