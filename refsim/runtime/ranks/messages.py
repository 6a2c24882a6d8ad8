"""Messages between the launching process, the fork server and the ranks: length, JSON, optional file descriptors.

No pickle: a message is JSON, tensors travel as the descriptor of a safetensors file.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_HEAD = struct.Struct("!Q")
_MAX_FDS = 200
_MOST_BYTES = 1 << 32
"""Of a message; a larger one is another program's text, read as a length."""


def send(sock: socket.socket, header: dict[str, Any], fds: list[int] | None = None) -> None:
    text = json.dumps(header).encode()
    head = _HEAD.pack(len(text))
    if fds:
        socket.send_fds(sock, [head], fds)
    else:
        sock.sendall(head)
    sock.sendall(text)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return one message and the file descriptors that came with it.

    Raises:
        EOFError: the other side is gone, or speaks another protocol.
    """
    head, fds, _, _ = socket.recv_fds(sock, _HEAD.size, _MAX_FDS)
    head += _exactly(sock, _HEAD.size - len(head)) if head else b""
    if len(head) < _HEAD.size:
        raise EOFError("the other side closed the connection")
    (size,) = _HEAD.unpack(head)
    if size > _MOST_BYTES:
        raise EOFError("the other side speaks another protocol")
    return json.loads(_exactly(sock, size)), list(fds)


def fd_batches(fds: list[int]) -> list[list[int]]:
    """Cut file descriptors into portions that one message may carry."""
    return [fds[i : i + _MAX_FDS] for i in range(0, len(fds), _MAX_FDS)]


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        n = sock.recv_into(view[got:])
        if n == 0:
            raise EOFError("the other side closed the connection")
        got += n
    return bytes(data)
