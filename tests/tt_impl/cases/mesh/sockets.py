"""Sockets between two halves of a mesh."""

from __future__ import annotations

import torch

from refsim.base.errors import UserError
from tests.tt_impl.env import Env, collect, raises


def between_submeshes(t: Env) -> None:
    """What is sent arrives in order, in the place the connection names; receiving before that is refused."""
    from tt_impl.mock.storage.errors import ShadowError

    ttnn = t.ttnn
    first, second = t.device.create_submeshes(ttnn.MeshShape(1, 1))
    core = ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, 0), ttnn.CoreCoord(0, 0))
    config = ttnn.SocketConfig([ttnn.SocketConnection(core, core)], ttnn.SocketMemoryConfig(ttnn.BufferType.L1, 4096))
    sender, receiver = ttnn.create_socket_pair(first, second, config)
    values = [torch.full((1, 1, 32, 64), float(number)) for number in (1, 2)]
    tile = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    out = ttnn.from_torch(torch.zeros(1, 1, 32, 64), device=second, **tile)
    receive, send = ttnn.experimental.recv_async, ttnn.experimental.send_async
    raises(ShadowError, lambda: receive(out, receiver), "recv_async", "send first")
    for value in values:
        assert send(ttnn.from_torch(value, device=first, **tile), sender) == []
    for value in values:
        receive(out, receiver)
        assert torch.equal(t.shadow.values(out)[0], value)
    send(ttnn.from_torch(values[0], device=first, **tile), sender)
    other = ttnn.from_torch(torch.zeros(1, 1, 64, 64), device=second, **tile)
    raises(UserError, lambda: receive(other, receiver), "recv_async", "(1, 1, 32, 64)")


CASES = collect(globals())
