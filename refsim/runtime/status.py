"""A board in shared memory on which every rank writes what it is doing, so that a dead rank can still be asked."""

from __future__ import annotations

import mmap
import struct
import time

_SLOT = 256
_TIME = struct.Struct("d")


class StatusBoard:
    """A time stamp and a line of text per rank, in anonymous shared memory that is gone with its users."""

    def __init__(self, fd: int, world_size: int) -> None:
        self.world_size = world_size
        self._map = mmap.mmap(fd, self.size(world_size))

    @staticmethod
    def size(world_size: int) -> int:
        return world_size * _SLOT

    def set(self, rank: int, text: str) -> None:
        data = _TIME.pack(time.monotonic()) + text.encode()[: _SLOT - _TIME.size]
        self._map[rank * _SLOT : (rank + 1) * _SLOT] = data.ljust(_SLOT, b"\0")

    def get(self, rank: int) -> tuple[float, str]:
        """(monotonic time of the last sign of life, what the rank said then)."""
        data = self._map[rank * _SLOT : (rank + 1) * _SLOT]
        return _TIME.unpack_from(data)[0], data[_TIME.size :].rstrip(b"\0").decode(errors="replace")
