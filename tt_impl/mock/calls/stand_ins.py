"""Calls that ttnn cannot make on a mock mesh, or that mean nothing there, and what happens instead.

* Sub-devices: cores are shared out among them, which changes no value. Loading a manager is noted, not done.
* Events: every operation of the mock is over when it returns, so there is nothing to wait for.
* ``point_to_point`` and sockets: values of one device become those of another one. What is sent waits in the socket
  until it is received; after a receive that comes first, its devices wait (:mod:`tt_impl.mock.calls.waiting`).
* A host tensor copied to some of the cores of a sharded one.

Each use on which values or their order rest is counted in ``Shadow.emulated``: order between queues, and space on
cores, are not shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import ttnn

from refsim.base.errors import UserError
from tt_impl.mock.calls.checks import on_some_devices
from tt_impl.mock.calls.waiting import Queues
from tt_impl.mock.storage.errors import ShadowError
from tt_impl.mock.storage.host import host_shards
from tt_impl.mock.storage.partial import written_rows
from tt_impl.mock.storage.values import ProgramValues, filled, mesh_shape_of, ranks_of
from tt_impl.trace.intercept import Invocation


@dataclass
class Socket:
    """One way between two meshes: places (sender's rank, receiver's rank) and what is under way."""

    ends: tuple[ttnn.MeshSocket, ttnn.MeshSocket]
    places: list[tuple[int, int]]
    sent: deque[tuple[dict[int, torch.Tensor], tuple]] = field(default_factory=deque)


_SUB_DEVICE = ("sub_device_id", "subdevice_id")
"""Names of the option that says on which sub-device an operation runs."""


def on_whole_devices(shadow: Emulating, call: Invocation) -> Invocation:
    """Turn a call on a sub-device of a manager that ttnn was not told of to the only one it knows: all cores.

    A call on some devices of a mesh becomes one on all of them; the rule is told which were meant.
    """
    if on_some_devices(call):
        shadow.emulated[f"{call.name}(mesh_coords=)"] += 1
        call = replace(call, kwargs=call.kwargs | {"mesh_coords": None})
    named = [name for name in _SUB_DEVICE if call.kwargs.get(name) is not None]
    if not named or not shadow.sub_devices:
        return call
    shadow.emulated[f"{call.name}({named[0]}=)"] += 1
    return replace(call, kwargs=call.kwargs | dict.fromkeys(named, ttnn.SubDeviceId(0)))


class Emulating(ProgramValues):
    """The values of a program, its sockets by ``id`` of their ends, and devices with a loaded sub-device manager."""

    def __init__(self) -> None:
        super().__init__()
        self.sockets: dict[int, Socket] = {}
        self.queues = Queues(self.store)
        self.sub_devices: set[int] = set()


class Event:
    """What ``ttnn.record_event`` gives: it has always happened."""


def _load_manager(shadow: Emulating, call: Invocation) -> None:
    shadow.emulated[call.name] += 1
    shadow.sub_devices.add(call.args[0].id())


def _unless_loaded(shadow: Emulating, call: Invocation) -> Any:
    """Ask ttnn about sub-devices, unless they are of a manager that was loaded here, of which it does not know."""
    return None if call.args[0].id() in shadow.sub_devices else call.proceed()


def _clear_manager(shadow: Emulating, call: Invocation) -> None:
    if call.args[0].id() in shadow.sub_devices:
        shadow.sub_devices.discard(call.args[0].id())
    else:
        call.proceed()


def proceed(shadow: ProgramValues, call: Invocation) -> Any:
    """Let ttnn do what the call says."""
    return call.proceed()


def _record_event(shadow: Emulating, call: Invocation) -> Event:
    shadow.emulated[call.name] += 1
    return Event()


def _wait(shadow: Emulating, call: Invocation) -> None:
    if not any(isinstance(value, Event) for value in (*call.args, *call.kwargs.values())):
        raise UserError(f"{call.name} needs an event that ttnn.record_event gave.")
    shadow.emulated[call.name] += 1


def _rank(coordinate: Any, columns: int) -> int:
    return coordinate[0] * columns + coordinate[1]


def _point_to_point(shadow: Emulating, call: Invocation) -> ttnn.Tensor:
    """Give the receiver the sender's part; other devices of a new output hold what nobody has written."""
    shadow.emulated[call.name] += 1
    arguments = call.named("input_tensor", "sender_coord", "receiver_coord", "topology")
    source = arguments["input_tensor"]
    out = arguments.get("output_tensor")
    read = shadow.store.read(source, call.name)
    columns = mesh_shape_of(source)[1]
    if out is None:
        out = ttnn.allocate_tensor_on_device(source.spec, source.device())
        out.update_tensor_topology(source.tensor_topology())
        values = [filled(out, float("nan"))] * len(read)
    else:
        if (tuple(out.shape), out.dtype, out.layout) != (tuple(source.shape), source.dtype, source.layout):
            raise UserError(f"{call.name} needs an output of its input's shape, dtype and layout.")
        values = list(shadow.store.read(out, call.name))
    sender, receiver = (_rank(arguments[name], columns) for name in ("sender_coord", "receiver_coord"))
    ranks = ranks_of(source)
    values[ranks.index(receiver)] = read[ranks.index(sender)]
    shadow.store.write(out, values, call.name)
    return out


def _create_socket_pair(shadow: Emulating, call: Invocation) -> Any:
    """Make real sockets, with their buffers, and note who sends to whom over their connections."""
    pair = call.proceed()
    arguments = call.named("sender_mesh_device", "receiver_mesh_device", "socket_config")
    sender, receiver = (arguments[f"{end}_mesh_device"].shape[1] for end in ("sender", "receiver"))
    places = [
        (_rank(link.sender_core.device_coord, sender), _rank(link.receiver_core.device_coord, receiver))
        for link in pair[0].get_connection_config()
    ]
    socket = Socket(tuple(pair), places)
    for end in pair:
        shadow.sockets[id(end)] = socket
    return pair


def _socket(shadow: Emulating, call: Invocation, end: Any) -> Socket:
    socket = shadow.sockets.get(id(end))
    if socket is None:
        raise ShadowError(f"{call.name} needs a socket of ttnn.create_socket_pair; others end in another process.")
    return socket


def _send(shadow: Emulating, call: Invocation) -> list:
    shadow.emulated[call.name] += 1
    arguments = call.named("input_tensor", "mesh_socket")
    tensor = arguments["input_tensor"]
    socket = _socket(shadow, call, arguments["mesh_socket"])

    def send() -> None:
        by_rank = dict(zip(ranks_of(tensor), shadow.store.read(tensor, call.name), strict=True))
        sent = {receiver: by_rank[sender] for sender, receiver in socket.places}
        socket.sent.append((sent, (tuple(tensor.shape), tensor.dtype)))

    queue = shadow.queues.of([tensor])
    if queue is not None:
        queue.steps.append((None, send))
        return []
    send()
    shadow.queues.advance()
    return []


def _receive(shadow: Emulating, call: Invocation) -> list[ttnn.Tensor]:
    """Write what was sent; where nothing was, the devices of the output wait for it."""
    shadow.emulated[call.name] += 1
    arguments = call.named("output_tensor", "mesh_socket")
    out = arguments["output_tensor"]
    socket = _socket(shadow, call, arguments["mesh_socket"])

    def receive() -> None:
        sent, kind = socket.sent.popleft()
        if kind != (tuple(out.shape), out.dtype):
            raise UserError(f"{call.name} receives {kind[1].name} of shape {kind[0]} into another shape or dtype.")
        former = shadow.store.read(out, call.name)
        values = [sent.get(rank, former[i]) for i, rank in enumerate(ranks_of(out))]
        shadow.store.write(out, values, call.name)

    queue = shadow.queues.of([out])
    if queue is None and socket.sent:
        receive()
    else:
        (queue or shadow.queues.add(out, call.name)).steps.append((socket.sent, receive))
    return [out]


def _copy_partial(shadow: Emulating, call: Invocation) -> Any:
    """Write only what lies on the cores of the filter."""
    shadow.emulated[call.name] += 1
    arguments = call.named("host_tensor", "device_tensor", "logical_core_filter")
    out = arguments["device_tensor"]
    former = shadow.store.read(out, call.name)
    result = call.proceed()
    written = written_rows(out, arguments["logical_core_filter"])
    host = host_shards(arguments["host_tensor"], len(former))
    values = [torch.where(written, new.to(old.dtype), old) for new, old in zip(host, former, strict=True)]
    shadow.store.write(out, values, call.name)
    return result


EMULATED: dict[str, Callable[[Any, Invocation], Any]] = {
    "ttnn.MeshDevice.clear_loaded_sub_device_manager": _clear_manager,
    "ttnn.MeshDevice.load_sub_device_manager": _load_manager,
    "ttnn.MeshDevice.remove_sub_device_manager": proceed,
    "ttnn.MeshDevice.reset_sub_device_stall_group": _unless_loaded,
    "ttnn.MeshDevice.set_sub_device_stall_group": _unless_loaded,
    "ttnn.copy_host_to_device_tensor_partial": _copy_partial,
    "ttnn.create_socket_pair": _create_socket_pair,
    "ttnn.event_synchronize": _wait,
    "ttnn.experimental.recv_async": _receive,
    "ttnn.experimental.send_async": _send,
    "ttnn.point_to_point": _point_to_point,
    "ttnn.record_event": _record_event,
    "ttnn.wait_for_event": _wait,
}
