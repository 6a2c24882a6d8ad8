"""Device buffers, ping-pong pairs allocated once, and semaphores.

A buffer is known by its memory: whoever sends, receives or computes on a view of it has used the buffer, whatever it
says. Released memory goes to the next buffer of its shape under a handle of its own: a view of the old handle is a use
of the old buffer, although the bytes are the new one's. Uses are logged; ``refsim.runtime.watch.hazards`` finds those
that nothing keeps apart, and those after the release.

    persistent   allocated once per key, handed out again at every call
    transient    belongs to one collective, which releases it at its end
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from refsim.base.errors import HazardError
from refsim.runtime.transports import pages


@dataclass(eq=False)
class DeviceBuffer:
    """An allocation of one rank.

    Attributes:
        id: its name in the trace.
        tensor: the handle on its memory, which no other buffer has, though the memory may be another one's by now.
        serial: its number among the rank's allocations.
        taken_from: the released buffer whose memory this one got, None if the memory is new.
        released_in: path of the collective that released it (``-`` outside collectives), None while it is held.
    """

    id: str
    tensor: Tensor
    serial: int
    taken_from: DeviceBuffer | None = None
    released_in: str | None = None


class PingPong:
    """Two buffers of one shape; step ``s`` works on ``pair[s]`` while ``pair[s + 1]`` is being filled."""

    def __init__(self, slots: tuple[DeviceBuffer, DeviceBuffer]) -> None:
        self._slots = slots

    def __getitem__(self, step: int) -> DeviceBuffer:
        return self._slots[step % 2]


class BufferPool:
    """The buffers of one rank.

    Args:
        released: called with every buffer that is released.
        where: called for the path of the collective the rank is in.
    """

    def __init__(
        self, released: Callable[[DeviceBuffer], None] = lambda buffer: None, where: Callable[[], str] = lambda: ""
    ) -> None:
        self._persistent: dict[tuple[str, tuple[int, ...], torch.dtype], DeviceBuffer] = {}
        self._free: dict[tuple[tuple[int, ...], torch.dtype], list[DeviceBuffer]] = {}
        # Released buffers stay here: while their handle lives, a view of it still means them.
        self._by_storage: dict[int, DeviceBuffer] = {}
        self._allocated = 0
        self._released = released
        self._where = where

    def persistent(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> DeviceBuffer:
        """Return the buffer of that key; its memory is allocated on first use, or taken from what was released."""
        key = (name, shape, dtype)
        if key not in self._persistent:
            same_name = sum(k[0] == name for k in self._persistent)
            free = self._free.get((shape, dtype))
            old = free.pop() if free else None
            memory = _allocated(shape, dtype) if old is None else _another_handle(old.tensor)
            self._persistent[key] = self._register(f"{name}#{same_name}" if same_name else name, memory, old)
        return self._persistent[key]

    def ping_pong(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> PingPong:
        return PingPong((self.persistent(f"{name}[0]", shape, dtype), self.persistent(f"{name}[1]", shape, dtype)))

    @contextmanager
    def transient(self, name: str, *memory: Tensor) -> Iterator[None]:
        """Make ``memory`` the buffers ``name[0]``, ``name[1]``, ... inside this block, ordinary tensors after."""
        buffers = [self._register(f"{name}[{i}]" if len(memory) > 1 else name, t) for i, t in enumerate(memory)]
        try:
            yield
        finally:
            for buffer in buffers:
                self._released(buffer)
                del self._by_storage[_storage(buffer.tensor)]

    def release(self, buffer: DeviceBuffer) -> None:
        """Give the memory of a persistent buffer to whoever asks for that shape next.

        Raises:
            HazardError: it was released before, or it is no persistent buffer of this pool.
        """
        key = next((key for key, other in self._persistent.items() if other is buffer), None)
        if key is None:
            raise HazardError(self._not_held(buffer))
        del self._persistent[key]
        self._free.setdefault(key[1:], []).append(buffer)
        buffer.released_in = self._where() or "-"
        self._released(buffer)

    def _not_held(self, buffer: DeviceBuffer) -> str:
        """Return why ``buffer`` cannot be released, in one sentence."""
        here = _inside(self._where())
        if buffer.released_in is None:
            return f"buffer {buffer.id} is released{here}, but it is no persistent buffer of this rank"
        owner = next((other for other in self._by_storage.values() if other.taken_from is buffer), None)
        then = f"and its memory is buffer {owner.id}'s now" if owner else "and its memory is free"
        before = _inside(buffer.released_in)
        return f"double release: buffer {buffer.id} is released{here}, but was released{before} before {then}"

    def all(self) -> list[DeviceBuffer]:
        """Return every persistent buffer."""
        return list(self._persistent.values())

    def of(self, tensor: Tensor) -> DeviceBuffer | None:
        """Return the buffer whose memory ``tensor`` lies in, None if it lies in none."""
        return self._by_storage.get(_storage(tensor)) if self._by_storage else None

    def _register(self, id: str, memory: Tensor, taken_from: DeviceBuffer | None = None) -> DeviceBuffer:
        buffer = DeviceBuffer(id, memory, self._allocated, taken_from)
        self._allocated += 1
        self._by_storage[_storage(memory)] = buffer
        return buffer


class Semaphore:
    """A count of arrivals: the consumer of arrival ``n`` waits for value ``n``, and each completed arrival adds one.

    On a device the fabric increments the semaphore; here the arrival is a transfer that the waiting rank
    completes, so a wait that nothing will ever satisfy is an error at once instead of a hang.

    Args:
        waiter, signaller: who waits and who should signal, for the sentence of that error.

    Attributes:
        pending: what completes the arrivals that are still to come, in order.
    """

    def __init__(self, name: str, *, waiter: str, signaller: str) -> None:
        self.name = name
        self.value = 0
        self._waiter = waiter
        self._signaller = signaller
        self.pending: list[Callable[[], None]] = []

    def signal_on(self, complete: Callable[[], None]) -> None:
        """Let the arrival that ``complete`` waits for add one."""
        self.pending.append(complete)

    def wait(self, value: int) -> None:
        while self.value < value:
            if not self.pending:
                raise HazardError(
                    f"semaphore never reached: {self._waiter} waits until semaphore {self.name} is {value}, "
                    f"which stands at {self.value} after all that {self._signaller} will add"
                )
            self.pending.pop(0)()
            self.value += 1


def _allocated(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return memory that is kept and that other processes read: on large pages, where that is worth it."""
    on_cpu = torch.get_default_device().type == "cpu"
    memory = pages.allocated(math.prod(shape) * dtype.itemsize) if on_cpu else None
    return torch.empty(shape, dtype=dtype) if memory is None else memory.view(dtype).view(shape)


def _storage(tensor: Tensor) -> int:
    """Return the identity of the memory behind a tensor, the same for all its views (of meta tensors too)."""
    return tensor.untyped_storage()._cdata


def _another_handle(tensor: Tensor) -> Tensor:
    """Return a tensor on the same memory (on meta, which has none, just another one) with a storage of its own."""
    if tensor.is_meta:
        return torch.empty_like(tensor)
    memory = tensor.view(-1).view(torch.uint8).numpy()
    return torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape)


def _inside(path: str) -> str:
    return f" in {path}" if path not in ("", "-") else ""
