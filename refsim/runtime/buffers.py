"""Device buffers with an owner, ping-pong pairs allocated once, and semaphores.

Every party that touches a buffer says so: a transfer that fills it writes, a transfer that drains it and a compute
step that consumes it read. Two parties that exclude each other are a ``HazardError`` with both names in it, even
when the values would have come out right.

          free --begin_write--> written by W --end_write--> free
          free --begin_read---> read by {R1, R2, ...} --end_read--> free
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from refsim.errors import HazardError


class DeviceBuffer:
    """A persistent allocation of one rank; ``tensor`` is its storage, ``id`` its name in the trace."""

    def __init__(self, id: str, tensor: Tensor) -> None:
        self.id = id
        self.tensor = tensor
        self._writers: list[str] = []
        self._readers: list[str] = []
        self._parts: dict[int, DeviceBuffer] = {}

    def part(self, index: int) -> DeviceBuffer:
        """Piece ``index`` of this buffer, owned on its own where pieces are moved one by one."""
        if index not in self._parts:
            self._parts[index] = DeviceBuffer(self.id, self.tensor)
        return self._parts[index]

    def begin_write(self, who: str) -> None:
        if self._readers:
            raise HazardError(f"{who} would write buffer {self.id} while {self._readers[0]} still reads it")
        if self._writers:
            raise HazardError(f"{who} would write buffer {self.id} while {self._writers[0]} still writes it")
        self._writers.append(who)

    def end_write(self, who: str) -> None:
        self._writers.remove(who)

    def begin_read(self, who: str) -> None:
        if self._writers:
            raise HazardError(f"{who} would read buffer {self.id} while {self._writers[0]} still writes it")
        self._readers.append(who)

    def end_read(self, who: str) -> None:
        self._readers.remove(who)

    @contextmanager
    def writing(self, who: str) -> Iterator[Tensor]:
        self.begin_write(who)
        try:
            yield self.tensor
        finally:
            self.end_write(who)

    @contextmanager
    def reading(self, who: str) -> Iterator[Tensor]:
        self.begin_read(who)
        try:
            yield self.tensor
        finally:
            self.end_read(who)


class PingPong:
    """Two buffers of one shape; step ``s`` works on ``pair[s]`` while ``pair[s + 1]`` is being filled."""

    def __init__(self, slots: tuple[DeviceBuffer, DeviceBuffer]) -> None:
        self._slots = slots

    def __getitem__(self, step: int) -> DeviceBuffer:
        return self._slots[step % 2]


class BufferPool:
    """The persistent buffers of one rank, by key; a key that was allocated once is handed out again."""

    def __init__(self) -> None:
        self._buffers: dict[tuple, DeviceBuffer] = {}

    def persistent(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> DeviceBuffer:
        key = (name, shape, dtype)
        if key not in self._buffers:
            same_name = sum(k[0] == name for k in self._buffers)
            id = name if not same_name else f"{name}#{same_name}"
            self._buffers[key] = DeviceBuffer(id, torch.empty(shape, dtype=dtype))
        return self._buffers[key]

    def ping_pong(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> PingPong:
        return PingPong((self.persistent(f"{name}[0]", shape, dtype), self.persistent(f"{name}[1]", shape, dtype)))


class Semaphore:
    """Counts arrivals. The consumer of step ``s`` waits for value ``s``; each completed arrival adds one.

    On a device the fabric increments the semaphore; here the arrival is a transfer that the waiting rank
    completes, so a wait that nothing will ever satisfy is an error at once instead of a hang.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 0
        self._pending: list[Callable[[], None]] = []

    def signal_on(self, complete: Callable[[], None]) -> None:
        """The arrival that ``complete`` waits for will add one."""
        self._pending.append(complete)

    def wait(self, value: int) -> None:
        while self.value < value:
            if not self._pending:
                raise HazardError(f"semaphore {self.name} stands at {self.value} and can never reach {value}")
            self._pending.pop(0)()
            self.value += 1
