"""A board in shared memory on which every rank writes what it is doing, so that a dead rank can still be asked."""

from __future__ import annotations

import mmap
import struct
import time

from refsim.runtime.watch.activity import Activity

KEPT = 8
"""Events per rank that the board remembers."""

_SLOT = 256
_HEAD = 16  # the count of events, and how far the job is
_TIME = struct.Struct("d")
_SLOTS = KEPT + 1  # one more, which may be half written while the others are read
_RANK = _HEAD + _SLOTS * _SLOT


class StatusBoard:
    """The last activities of every rank, each with a time stamp, in anonymous shared memory.

    A rank writes only its own part, the event before the count, so whoever looks sees whole events. The count is one
    store of eight bytes; ``struct.pack_into`` would write zeros first, and who looks just then sees a rank that never
    said anything.
    """

    def __init__(self, fd: int, world_size: int) -> None:
        self.world_size = world_size
        self._map = mmap.mmap(fd, self.size(world_size))
        self._counts = memoryview(self._map).cast("Q")[:: _RANK // 8]
        self._done = memoryview(self._map).cast("Q")[1 :: _RANK // 8]

    def close(self) -> None:
        self._counts.release()
        self._done.release()
        self._map.close()

    @staticmethod
    def size(world_size: int) -> int:
        return world_size * _RANK

    def set(self, rank: int, activity: Activity) -> None:
        """Write what ``rank`` does from now on."""
        count = self._counts[rank]
        data = _TIME.pack(time.monotonic()) + activity.encode(_SLOT - _TIME.size)
        start = self._slot(rank, count)
        self._map[start : start + len(data)] = data  # which says itself how long it is
        self._counts[rank] = count + 1

    def get(self, rank: int) -> tuple[float, Activity | None]:
        """Return (monotonic time of the last sign of life, what the rank did then), (0, None) before the first."""
        events = self.recent(rank, 1)
        return events[-1] if events else (0.0, None)

    def recent(self, rank: int, count: int = KEPT) -> list[tuple[float, Activity]]:
        """Return the last ``count`` events of a rank, oldest first, as (monotonic time, activity)."""
        total = self._counts[rank]
        events = []
        for index in range(max(0, total - min(count, KEPT)), total):
            start = self._slot(rank, index)
            data = self._map[start : start + _SLOT]
            events.append((_TIME.unpack_from(data)[0], Activity.decode(data[_TIME.size :])))
        return events

    def advance(self, rank: int, done: int, total: int) -> None:
        """Say how far the job is, in steps of its own; both below 2**32."""
        self._done[rank] = total << 32 | done

    def progress(self, rank: int) -> tuple[int, int]:
        """Return (steps done, steps in all), or (0, 0) before the job has said so."""
        word = self._done[rank]
        return word & 0xFFFFFFFF, word >> 32

    @staticmethod
    def _slot(rank: int, index: int) -> int:
        return rank * _RANK + _HEAD + index % _SLOTS * _SLOT
