"""Sockets between two halves of a mesh."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from refsim.base.errors import UserError
from tests.tt_impl.env import Env, collect, raises
from tt_impl.mock.storage.errors import ShadowError


def _pair(t: Env, first: Any, second: Any) -> Any:
    ttnn = t.ttnn
    core = ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, 0), ttnn.CoreCoord(0, 0))
    config = ttnn.SocketConfig([ttnn.SocketConnection(core, core)], ttnn.SocketMemoryConfig(ttnn.BufferType.L1, 4096))
    return ttnn.create_socket_pair(first, second, config)


def _put(t: Env, value: torch.Tensor, device: Any) -> Any:
    return t.ttnn.from_torch(value, device=device, dtype=t.ttnn.bfloat16, layout=t.ttnn.TILE_LAYOUT)


def between_submeshes(t: Env) -> None:
    """What is sent arrives in order, in the place the connection names."""
    from tt_impl.trace.intercept import uncaught

    first, second = t.device.create_submeshes(t.ttnn.MeshShape(1, 1))
    sender, receiver = _pair(t, first, second)
    values = [torch.full((1, 1, 32, 64), float(number)) for number in (1, 2)]
    out = _put(t, torch.zeros(1, 1, 32, 64), second)
    receive, send = t.ttnn.experimental.recv_async, t.ttnn.experimental.send_async
    for value in values:
        assert send(_put(t, value, first), sender) == []
    for value in values:
        receive(out, receiver)
        assert torch.equal(t.shadow.values(out)[0], value)
    send(_put(t, values[0], first), sender)
    other = _put(t, torch.zeros(1, 1, 64, 64), second)
    raises(UserError, lambda: receive(other, receiver), "recv_async", "(1, 1, 32, 64)")
    with uncaught():
        elsewhere, _ = _pair(t, first, second)
    raises(ShadowError, lambda: send(_put(t, values[0], first), elsewhere), "send_async", "create_socket_pair")


def received_before_it_is_sent(t: Env) -> None:
    """Two halves exchange values, each first receiving or first sending, and go on computing at once."""
    ttnn = t.ttnn
    first, second = t.device.create_submeshes(ttnn.MeshShape(1, 1))
    there, back = _pair(t, first, second), _pair(t, second, first)
    x, y = t.rand(1, 1, 32, 64), t.rand(1, 1, 32, 64)
    on_first, on_second = _put(t, x, first), _put(t, y, second)
    from_second, from_first = _put(t, x, first), _put(t, y, second)
    ttnn.experimental.send_async(on_first, there[0])
    ttnn.experimental.recv_async(from_second, back[1])
    doubled = ttnn.add(from_second, from_second)
    total = ttnn.add(doubled, on_first)
    ttnn.deallocate(doubled)
    again = ttnn.add(_put(t, x, first), ttnn.reshape(total, (1, 1, 64, 32)).reshape((1, 1, 32, 64)))
    raises(UserError, lambda: ttnn.to_torch(total), "ttnn.to_torch", "recv_async", "hangs")
    raises(UserError, lambda: ttnn.synchronize_device(first), "ttnn.synchronize_device")
    ttnn.experimental.recv_async(from_first, there[1])
    assert torch.equal(t.shadow.values(from_first)[0], x)
    ttnn.experimental.send_async(on_second, back[0])
    t.check(total, 2 * y + x)
    t.check(again, (2 * y + x).bfloat16() + x)
    assert not t.shadow.queues


def sent_on_what_was_received(t: Env) -> None:
    """A send of devices that wait is made when they go on; others are read meanwhile, and nothing else is begun."""
    ttnn = t.ttnn
    first, second = t.device.create_submeshes(ttnn.MeshShape(1, 1))
    there, back = _pair(t, first, second), _pair(t, second, first)
    y = t.rand(1, 1, 32, 64)
    on_second, from_second, from_first = (_put(t, y, device) for device in (second, first, second))
    ttnn.experimental.recv_async(from_second, back[1])
    assert ttnn.experimental.send_async(ttnn.add(from_second, from_second), there[0]) == []
    assert torch.equal(ttnn.to_torch(on_second).float(), y)
    raises(ShadowError, lambda: ttnn.narrow(from_second, 2, 0, 32), "ttnn.narrow", "recv_async", "after the send")
    ttnn.experimental.send_async(on_second, back[0])
    ttnn.experimental.recv_async(from_first, there[1])
    t.check(from_first, 2 * y)


def devices_of_which_some_wait(t: Env) -> None:
    """What runs on devices that wait, and on others or on those that wait in another receive, has no values."""
    from tt_impl.mock.calls.waiting import Queues

    def on(*numbers: int) -> Any:
        device = SimpleNamespace(get_device_ids=lambda: list(numbers))
        return SimpleNamespace(device=lambda: device)

    queues = Queues(SimpleNamespace(waiting=False))
    assert queues.of([on(0, 1)]) is None
    queue = queues.add(on(0, 1), "recv_async")
    assert queues.of([on(0)]) is queue and queues.of([on(2)]) is None and queues.of([], [on(1).device()]) is queue
    raises(ShadowError, lambda: queues.of([on(1, 2)]), "only some wait in recv_async")
    queues.add(on(2), "another")
    raises(ShadowError, lambda: queues.of([on(1), on(2)]), "only some wait in recv_async")


CASES = collect(globals())
