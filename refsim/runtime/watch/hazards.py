"""Find uses of device buffers that nothing keeps apart, from what happens before what, not from how the timing fell.

Every rank logs when (by its own count of operations) it begins and ends each use of a buffer of its own, and every
transfer. A receive is the peer's remote write: it may happen any time after both sides have posted it and before the
receiver has waited for it. A send reads the sender's memory until it is waited for.

    happens before:   earlier operations of a rank --> later operations of that rank
                      send posted                  --> receive waited for            (what a semaphore signals)
                      both sides posted            --> the write --> receive waited for

That a send has been waited for tells its sender nothing about the receiver: a device knows only that the data left.

First each rank screens its own log, in one pass: two uses which the rank's own order keeps apart are safe. Only if a
rank finds others does rank 0 get all logs, compute vector clocks, and confirm or acquit them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from refsim.runtime.buffers import DeviceBuffer

KINDS = ("write-while-read", "read-before-written", "write-after-write", "release-in-use")
_NEVER = 1 << 62


class Use:
    """One use of memory, or one transfer: ``buffer`` is None for a transfer of memory that is no buffer's."""

    __slots__ = ("begin", "buffer", "channel", "end", "hi", "lo", "op", "path", "peer", "step", "writes")

    def __init__(self, *fields: Any) -> None:
        (self.writes, self.buffer, self.lo, self.hi, self.op, self.step, self.path) = fields[:7]
        (self.peer, self.channel, self.begin, self.end) = fields[7:]

    def as_json(self) -> list[Any]:
        first = [self.writes, self.buffer, self.lo, self.hi, self.op, self.step, self.path]
        return [*first, self.peer, self.channel, self.begin, self.end]

    def __str__(self) -> str:
        step = f" of step {self.step}" if self.step >= 0 else ""
        return f"{self.op}{step}" + (f" of {self.path}" if self.path else "")


class UseLog:
    """The log of what one rank did to its buffers, in its own order; ``on=False`` logs nothing."""

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self._now = 0
        self._uses: list[Use] = []
        self._names: dict[int, str] = {}
        self._released: dict[int, tuple[int, str]] = {}
        self._taken: dict[int, int] = {}  # a released buffer -> the buffer that has its memory now

    def begin(
        self,
        tensor: Tensor,
        buffer: DeviceBuffer | None,
        *,
        writes: bool,
        op: str,
        step: int,
        path: str,
        peer: int | None = None,
        channel: int = 0,
    ) -> Use:
        """Log that a use begins; the caller hands the use to ``end`` when it is over.

        ``lo`` and ``hi`` of the use are the bytes of the buffer from the tensor's first to its last element.
        """
        self._now += 1
        serial = None
        lo = 0
        hi = 0
        if buffer is not None:
            serial = buffer.serial
            self._name(buffer)
            size = tensor.element_size()
            lo = tensor.storage_offset() * size
            if tensor.is_contiguous():
                hi = lo + tensor.nbytes
            else:
                reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
                hi = lo + (reach + 1) * size
        use = Use(writes, serial, lo, hi, op, step, path, peer, channel, self._now, _NEVER)
        self._uses.append(use)
        return use

    def end(self, use: Use) -> None:
        """Log that ``use`` is over."""
        self._now += 1
        use.end = self._now

    def release(self, buffer: DeviceBuffer, path: str) -> None:
        """Log that ``buffer`` is given away inside collective ``path``; a later or unfinished use of it is a hazard."""
        if self.on:
            self._now += 1
            self._name(buffer)
            self._released[buffer.serial] = self._now, path

    def _name(self, buffer: DeviceBuffer) -> None:
        if buffer.serial not in self._names:
            self._names[buffer.serial] = buffer.id
            if buffer.taken_from is not None:
                self._taken[buffer.taken_from.serial] = buffer.serial

    def suspicious(self) -> bool:
        """Whether this rank's own order leaves any two uses of a buffer unordered, or one unread or unwritten."""
        return any(_suspicious(uses, self._released.get(serial)) for serial, uses in _by_buffer(self._uses).items())

    def as_json(self) -> dict[str, Any]:
        """Return the log as JSON values, which rank 0 asks for."""
        return {
            "uses": [use.as_json() for use in self._uses],
            "names": list(self._names.items()),
            "released": [[serial, *when] for serial, when in self._released.items()],
            "taken": list(self._taken.items()),
        }


@dataclass(frozen=True)
class Hazard:
    """Two uses that nothing keeps apart, in one sentence that names both ranks, steps and operations.

    ``steps`` are those of the uses, for who translates other programs' logs; the second is missing if it never came.
    """

    kind: str
    sentence: str
    buffer: str
    rank: int
    steps: Sequence[int] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


def find(logs: list[dict[str, Any]]) -> list[Hazard]:
    """Return the hazards in the logs of all ranks (``UseLog.as_json``, by rank); equal sentences come once."""
    ranks = [_Rank(rank, log) for rank, log in enumerate(logs)]
    order = _HappensBefore(ranks)
    hazards = {hazard: None for rank in ranks for hazard in _of_rank(rank, order)}
    return list(hazards)


class _Rank:
    """The log of one rank, read back."""

    def __init__(self, rank: int, log: dict[str, Any]) -> None:
        self.rank = rank
        self.uses = [Use(*fields) for fields in log["uses"]]
        self.names: dict[int, str] = {serial: name for serial, name in log["names"]}
        self.released = {serial: (when, path) for serial, when, path in log["released"]}
        self.taken: dict[int, int] = {old: new for old, new in log.get("taken", ())}

    @cached_property
    def transfers(self) -> list[Use]:
        return [use for use in self.uses if use.peer is not None]


class _HappensBefore:
    """Vector clocks of all sends, and which send belongs to which receive.

    The clock of a send holds, for every rank, how many of that rank's operations happen before the send is posted.
    """

    def __init__(self, ranks: list[_Rank]) -> None:
        # Transfers between two ranks arrive in order per channel, so the nth receive belongs to the nth send.
        sends: dict[tuple[int, int, int], list[tuple[int, Use]]] = defaultdict(list)
        for sender in ranks:
            for use in sender.transfers:
                if not use.writes:
                    sends[sender.rank, use.peer, use.channel].append((sender.rank, use))
        self.send_of: dict[int, tuple[int, Use]] = {}
        for receiver in ranks:
            nth: dict[tuple[int, int, int], int] = defaultdict(int)
            for use in receiver.transfers:
                if use.writes:
                    key = use.peer, receiver.rank, use.channel
                    if nth[key] < len(sends[key]):
                        self.send_of[id(use)] = sends[key][nth[key]]
                    nth[key] += 1
        self._clock: dict[int, np.ndarray] = {}
        self._run(ranks)

    def _run(self, ranks: list[_Rank]) -> None:
        """Let every rank go on as far as what it waits for has been sent, until no rank gets further."""
        # Where a rank's clock matters: where it posts a send, and where it has waited for a receive. A receive that was
        # never waited for ends at _NEVER, so it comes last and teaches its rank nothing.
        points = [
            sorted((use.end if use.writes else use.begin, i) for i, use in enumerate(rank.transfers)) for rank in ranks
        ]
        now = [np.zeros(len(ranks), dtype=np.int64) for _ in ranks]
        at = [0] * len(ranks)
        # Invariant: now[r] is the clock of rank r just before its point at[r], complete because every receive before it
        # has been joined with the clock of its send. Each pass moves at least one rank on, or the loop ends.
        moved = True
        while moved:
            moved = False
            for r, rank in enumerate(ranks):
                while at[r] < len(points[r]):
                    when, i = points[r][at[r]]
                    use = rank.transfers[i]
                    if use.writes and when < _NEVER and id(use) in self.send_of:
                        sent = self._clock.get(id(self.send_of[id(use)][1]))
                        if sent is None:
                            break  # the sender has not come to this send yet: wait for it in the next pass
                        np.maximum(now[r], sent, out=now[r])
                    elif not use.writes:
                        self._clock[id(use)] = now[r].copy()
                        self._clock[id(use)][r] = when
                    at[r] += 1
                    moved = True

    def before(self, a: Use, b: Use, rank: int) -> bool:
        """Whether use ``a`` of a buffer of ``rank`` is over before use ``b`` of it can begin."""
        if a.end <= b.begin:
            return True  # the rank's own order
        if b.peer is None or not b.writes or id(b) not in self.send_of:
            return False
        # b is the peer's remote write. It may begin as soon as the peer has posted its send, so a is over only if the
        # peer knew by then, through messages, that this rank had come past the end of a.
        sent = self._clock.get(id(self.send_of[id(b)][1]))
        return sent is not None and a.end < _NEVER and int(sent[rank]) >= a.end


def _of_rank(rank: _Rank, order: _HappensBefore) -> Iterator[Hazard]:
    """Yield the hazards of the buffers of one rank."""
    for serial, uses in _by_buffer(rank.uses).items():
        released = rank.released.get(serial)
        if _suspicious(uses, released):
            name = f"buffer {rank.names[serial]} of rank {rank.rank}"
            yield from _released_in_use(rank, serial, uses, order)
            for segment in _segments(uses):
                yield from _of_segment(rank, name, segment, order)


def _of_segment(rank: _Rank, name: str, uses: list[Use], order: _HappensBefore) -> Iterator[Hazard]:
    """Yield the hazards among uses that all touch the same bytes and are sorted by begin."""

    def hazard(kind: str, sentence: str, *of: Use | None) -> Hazard:
        return Hazard(kind, f"{sentence}.", name, rank.rank, tuple(use.step for use in of if use))

    def who(use: Use) -> str:
        return _who(rank, use, order)

    def before(a: Use, b: Use) -> bool:
        return order.before(a, b, rank.rank)

    writes = [use for use in uses if use.writes]
    reads = [use for use in uses if not use.writes]
    unwritten = set()
    for read in reads:
        if any(before(write, read) for write in reversed(writes)):
            continue
        unwritten.add(read)
        later = next((write for write in writes if not before(read, write)), writes[0] if writes else None)
        then = f"and does not wait for {who(later)}, the first to write it" if later else "and nobody writes it"
        sentence = f"{who(read)} reads {name} before anything is written to it, {then}"
        yield hazard("read-before-written", sentence, read, later)
    for i, first in enumerate(uses):
        for second in uses[i + 1 :]:
            if first.end <= second.begin:
                break
            if not (first.writes or second.writes) or before(first, second) or before(second, first):
                continue
            if first.writes and second.writes:
                sentence = f"{who(first)} and {who(second)} both write {name} and nothing orders the two"
                yield hazard("write-after-write", sentence, first, second)
            else:
                write, read = (first, second) if first.writes else (second, first)
                if read not in unwritten:
                    sentence = f"{who(write)} writes {name} and {who(read)} reads it and nothing orders the two"
                    yield hazard("write-while-read", sentence, first, second)
    for i, second in enumerate(writes):
        previous = next((write for write in reversed(writes[:i]) if before(write, second)), None)
        if previous is None or any(before(previous, read) and before(read, second) for read in reads):
            continue
        if any(not before(read, second) and not before(second, read) for read in reads):
            continue  # reported above: the reader and the second write are not kept apart
        sentence = f"{who(second)} overwrites what {who(previous)} wrote to {name} and nobody has read it in between"
        yield hazard("write-after-write", sentence, previous, second)


def _released_in_use(rank: _Rank, serial: int, uses: list[Use], order: _HappensBefore) -> Iterator[Hazard]:
    """Yield the uses of a buffer that go on, or begin, after its memory was given away."""
    if serial not in rank.released:
        return
    when, path = rank.released[serial]
    name = f"buffer {rank.names[serial]} of rank {rank.rank}"
    where = f" in {path}" if path else ""
    owner = rank.names.get(rank.taken.get(serial, -1))
    whose = f", and its memory is buffer {owner}'s now" if owner else ""
    for use in uses:
        if use.end > when:
            under_way = use.begin < when
            does = f"still uses {name} when" if under_way else f"uses {name} after"
            then = f"rank {rank.rank} {'releases' if under_way else 'released'} it{where}{whose}"
            with_peer = f" (with rank {use.peer})" if use.peer is not None else ""
            sentence = f"{_who(rank, use, order)}{with_peer} {does} {then}."
            yield Hazard("release-in-use", sentence, name, rank.rank, (use.step,))


def _who(rank: _Rank, use: Use, order: _HappensBefore) -> str:
    """Name the rank whose operation touches the buffer; for a receive it is the sender, whose write it is."""
    if use.peer is not None and use.writes:
        if id(use) in order.send_of:
            sender, send = order.send_of[id(use)]
            return f"rank {sender}'s {send}"
        return f"rank {use.peer}, which never sends to rank {rank.rank}'s {use},"
    return f"rank {rank.rank}'s {use}"


def _by_buffer(uses: list[Use]) -> dict[int, list[Use]]:
    by_buffer: dict[int, list[Use]] = {}
    for use in uses:
        if use.buffer is not None:
            by_buffer.setdefault(use.buffer, []).append(use)
    return by_buffer


def _segments(uses: list[Use]) -> Iterator[list[Use]]:
    """Cut the buffer where any use begins or ends, and give the uses of each piece: all of them touch all of it."""
    borders = sorted({use.lo for use in uses} | {use.hi for use in uses})
    for lo, hi in itertools.pairwise(borders):
        touching = [use for use in uses if use.lo < hi and lo < use.hi]
        if touching:
            yield touching


def _suspicious(uses: list[Use], released: tuple[int, str] | None) -> bool:
    """Whether the rank's own order leaves anything open among the uses of a buffer, which are sorted by begin.

    One pass is enough: per piece of the buffer only the latest write and the latest read after it can still be under
    way when a later use begins.
    """
    if released is not None and any(use.end > released[0] for use in uses):
        return True
    borders = sorted({use.lo for use in uses} | {use.hi for use in uses})
    index = {border: i for i, border in enumerate(borders)}
    written = [0] * len(borders)  # end of the latest write, 0: none yet
    read = [0] * len(borders)  # end of the latest read since that write, 0: none yet
    for use in uses:
        for i in range(index[use.lo], index[use.hi]):
            if use.writes:
                if written[i] > use.begin or read[i] > use.begin or (written[i] and not read[i]):
                    return True
                written[i] = use.end
                read[i] = 0
            else:
                if not written[i] or written[i] > use.begin:
                    return True
                if use.end > read[i]:
                    read[i] = use.end
    return False
