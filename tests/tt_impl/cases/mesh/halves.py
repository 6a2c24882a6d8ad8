"""Sockets between unlike parts of a mesh: 2x1 and 2x3 devices of 2x4, several connections, others left as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refsim.base.errors import UserError
from tests.tt_impl.env import Env, collect, raises
from tt_impl.mock.storage.errors import ShadowError

LINKS = {(0, 0): (0, 1), (1, 0): (1, 2)}
"""Who sends to whom."""


def _link(t: Env) -> tuple[Any, Any, Any, Any]:
    """A 2x1 and a 2x3 mesh, and two pairs of sockets from the one to the other."""
    ttnn = t.ttnn
    first = t.device.create_submesh(ttnn.MeshShape(2, 1), ttnn.MeshCoordinate(0, 0))
    second = t.device.create_submesh(ttnn.MeshShape(2, 3), ttnn.MeshCoordinate(0, 1))
    ends = [
        [ttnn.MeshCoreCoord(ttnn.MeshCoordinate(*place), ttnn.CoreCoord(0, 0)) for place in link]
        for link in LINKS.items()
    ]
    memory = ttnn.SocketMemoryConfig(ttnn.BufferType.L1, 4096)
    config = ttnn.SocketConfig([ttnn.SocketConnection(*link) for link in ends], memory)
    return first, second, *(ttnn.create_socket_pair(first, second, config) for _ in range(2))


def _put(t: Env, device: Any, dtype: str = "bfloat16") -> tuple[Any, list[Tensor]]:
    """Other values on every device."""
    ttnn, count = t.ttnn, device.get_num_devices()
    value = t.rand(count, 1, 32, 64)
    how = {"dtype": getattr(ttnn, dtype), "layout": ttnn.TILE_LAYOUT, "device": device}
    return ttnn.from_torch(value, mesh_mapper=ttnn.ShardTensorToMesh(device, dim=0), **how), list(value.split(1))


def _received(former: list[Tensor], sent: list[Tensor]) -> list[Tensor]:
    wanted = list(former)
    for sender, (row, column) in LINKS.items():
        wanted[3 * row + column] = sent[sender[0]]
    return wanted


def unlike_ends(t: Env) -> None:
    """Places are those of each end's own mesh; what is sent is told by dtype and shape, and counted."""
    first, second, (sender, receiver), _ = _link(t)
    (x, sent), (out, former) = _put(t, first), _put(t, second)
    send, receive = t.ttnn.experimental.send_async, t.ttnn.experimental.recv_async
    send(x, sender)
    receive(out, receiver)
    t.check(out, _received(former, sent))
    y, others = _put(t, first)
    send(y, sender)
    receive(t.ttnn.get_device_tensors(out)[5], receiver)  # the tensor of one device
    t.check(out, [*_received(former, sent)[:5], others[1]])
    send(x, sender)
    wide, _ = _put(t, second, "float32")
    raises(UserError, lambda: receive(wide, receiver), "another shape or dtype")
    assert t.shadow.emulated["ttnn.experimental.send_async"] == 3


def receives_behind_each_other(t: Env) -> None:
    """Devices that wait do all in order: a second receive, what is freed and a send of theirs."""
    ttnn = t.ttnn
    first, second, (sender, receiver), (ahead, waits) = _link(t)
    (x, one), (y, two), (out, former) = _put(t, first), _put(t, first), _put(t, second)
    other, others = _put(t, second)
    send, receive = ttnn.experimental.send_async, ttnn.experimental.recv_async
    receive(out, receiver)
    total = ttnn.add(out, other)
    view = ttnn.reshape(total, (1, 1, 64, 32))
    freed = other.buffer_unique_id()
    ttnn.deallocate(other)
    for read in (total.cpu, lambda: ttnn.dump_tensor("nowhere", total)):
        raises(UserError, read, "recv_async", "hangs")
    raises(ShadowError, lambda: ttnn.narrow(out, 2, 0, 32), "after the send")
    send(x, sender)
    wanted = [a + b for a, b in zip(_received(former, one), others, strict=True)]
    t.check(total, wanted)
    t.check(view, [value.reshape(1, 1, 64, 32) for value in wanted])
    receive(out, receiver)
    receive(total, receiver)
    send(y, sender)
    send(x, sender)
    t.check(out, _received(_received(former, one), two))
    t.check(total, _received([value.bfloat16().float() for value in wanted], one))
    send(y, ahead)
    receive(out, receiver)
    receive(out, waits)  # what is there waits behind what is not
    send(x, sender)
    t.check(out, _received(former, two))
    assert not t.shadow.queues and not t.shadow.store.waiting and freed not in t.shadow.store.values
    assert torch.equal(t.shadow.values(x)[0], one[0])


def sent_by_a_trace(t: Env) -> None:
    """A replay that sends other values than the capture did is refused; what is taken is told of its own mesh."""
    from tt_impl.mock.log.events import EventLog
    from tt_impl.trace.intercept import intercepted

    ttnn = t.ttnn
    first, second, (sender, _), _ = _link(t)
    x, _ = _put(t, first)
    trace = ttnn.begin_trace_capture(first)
    ttnn.experimental.send_async(x, sender)
    ttnn.end_trace_capture(first, trace)
    log = EventLog(t.shadow)
    kept = [_put(t, device)[0] for device in (first, *[second] * 9)]
    with intercepted(log, first=True):
        ttnn.execute_trace(first, trace)
    taken = {address for _, address in log.events[0].allocated or ()}
    assert {x.buffer_address(), kept[0].buffer_address()} <= taken
    assert kept[-1].buffer_address() not in taken  # on the other mesh
    ttnn.multiply_(x, 2.0)
    raises(ShadowError, lambda: ttnn.execute_trace(first, trace), "send_async", "other values")


CASES = collect(globals())
