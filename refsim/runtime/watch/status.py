"""A board in shared memory on which every rank writes what it is doing, so that a dead rank can still be asked."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterable

from refsim.runtime.watch.activity import Activity
from refsim.runtime.watch.calls import Call

Events = dict[int, list[tuple[float, Activity]]]
"""Per rank its last events, oldest first, as (seconds before now, activity)."""
RECENT = 8
"""Events per rank that the board remembers."""

_SLOT = 256
_HEAD = 16  # the count of events, and how far the job is
_TIME = struct.Struct("d")
_SLOTS = RECENT + 1  # one more, which may be half written while the others are read
_CALLS = 32  # collective calls per rank that the board remembers, and one that may be half written
_CALL = struct.Struct("=IIH182s")  # group, number, bytes of the text, text
_CALLS_AT = _HEAD + _SLOTS * _SLOT
_RANK = _CALLS_AT + 16 + _CALLS * _CALL.size


class StatusBoard:
    """The last activities of every rank, each with a time stamp, in anonymous shared memory.

    A rank writes only its own part, the event before the count, so whoever looks sees whole events. The count is one
    store of eight bytes; ``struct.pack_into`` would write zeros first, which look like a rank that never said anything.
    """

    def __init__(self, fd: int, world_size: int) -> None:
        self.world_size = world_size
        self._map = mmap.mmap(fd, self.size(world_size))
        self._counts = memoryview(self._map).cast("Q")[:: _RANK // 8]
        self._done = memoryview(self._map).cast("Q")[1 :: _RANK // 8]
        self._calls = memoryview(self._map).cast("Q")[_CALLS_AT // 8 :: _RANK // 8]
        self._runs = memoryview(self._map).cast("Q")[_CALLS_AT // 8 + 1 :: _RANK // 8]

    def close(self) -> None:
        self._counts.release()
        self._done.release()
        self._calls.release()
        self._runs.release()
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

    def seen(self, rank: int) -> float:
        """Return the monotonic time of a rank's last sign of life, 0 before the first."""
        count = self._counts[rank]
        return _TIME.unpack_from(self._map, self._slot(rank, count - 1))[0] if count else 0.0

    def recent(self, rank: int, count: int = RECENT) -> list[tuple[float, Activity]]:
        """Return the last ``count`` events of a rank, oldest first, as (monotonic time, activity)."""
        total = self._counts[rank]
        events = []
        for index in range(max(0, total - min(count, RECENT)), total):
            start = self._slot(rank, index)
            data = self._map[start : start + _SLOT]
            events.append((_TIME.unpack_from(data)[0], Activity.decode(data[_TIME.size :])))
        return events

    def events(self, ranks: Iterable[int]) -> Events:
        """Return the last events of these ranks."""
        now = time.monotonic()
        return {rank: [(now - at, activity) for at, activity in self.recent(rank)] for rank in ranks}

    def add_call(self, rank: int, call: Call) -> None:
        """Write that ``rank`` begins a collective call."""
        count = self._calls[rank]
        size = min(len(call.encoded), _CALL.size - 10)
        _CALL.pack_into(self._map, self._call(rank, count), call.group, call.number, size, call.encoded)
        self._calls[rank] = count + 1

    def calls(self, rank: int) -> list[Call]:
        """Return the last collective calls of a rank, oldest first; those that it overwrites meanwhile are left out."""
        count = self._calls[rank]
        first = max(0, count - _CALLS + 1)
        rows = [_CALL.unpack_from(self._map, self._call(rank, index)) for index in range(first, count)]
        overwritten = max(0, self._calls[rank] - _CALLS + 1 - first)
        complete = rows[overwritten:]
        return [Call(group, number, text[:size]) for group, number, size, text in complete]

    def begin_run(self, rank: int) -> None:
        """Forget a rank's calls: it begins a program, which every rank begins."""
        self._calls[rank] = 0
        self._runs[rank] += 1

    def run(self, rank: int) -> int:
        """Return how many programs a rank has begun."""
        return self._runs[rank]

    def advance(self, rank: int, done: int, total: int) -> None:
        """Say how far the job is, in steps of its own; both below 2**32."""
        self._done[rank] = total << 32 | done

    def progress(self, rank: int) -> tuple[int, int]:
        """Return (steps done, steps in all), or (0, 0) before the job has said so."""
        word = self._done[rank]
        return word & 0xFFFFFFFF, word >> 32

    @staticmethod
    def _call(rank: int, index: int) -> int:
        return rank * _RANK + _CALLS_AT + 16 + index % _CALLS * _CALL.size

    @staticmethod
    def _slot(rank: int, index: int) -> int:
        return rank * _RANK + _HEAD + index % _SLOTS * _SLOT
