"""Whether a program is safe whatever the delays: happens-before, by the same code that judges real runs."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

from parity.policies.operations import Link, Op, Place, Program
from refsim.runtime.watch.hazards import Hazard, find

_NEVER = 1 << 62
Brought = tuple[Place | None, tuple[int, int]]
"""Where something lies, and which version of it."""


def prove(threads: Program) -> list[Hazard]:
    """Return the hazards of a program by happens-before alone; none means safe whatever the delays.

    Every thread has a log of its own, as a rank has: it holds the thread's reads and writes and those of the remote
    writes that bring what it reads. Flags are messages between threads.
    """
    used = [_used(thread.ops) for thread in threads]
    hazards = find([_Log(threads, used, at).as_json() for at in range(len(threads))])
    return [replace(hazard, sentence=_named(hazard.sentence, threads)) for hazard in hazards]


def _named(sentence: str, threads: Program) -> str:
    return re.sub(r"\brank (\d+)", lambda number: str(threads[int(number[1])]), sentence)


class _Log:
    """What ``UseLog`` would hold after thread ``at`` has run its operations."""

    def __init__(self, threads: Program, used: list[set[Brought]], at: int) -> None:
        self._threads = threads
        self._used = used
        self._at = at
        self._ops = threads[at].ops
        self._when = {id(op): 10 * (i + 1) for i, op in enumerate(self._ops)}
        self._uses: list[list[Any]] = []
        self._serials: dict[str, int] = {}
        self._sends: dict[Link, int] = defaultdict(int)

    def as_json(self) -> dict[str, Any]:
        for sender, thread in enumerate(self._threads):
            for k, op in _numbered_sends(thread.ops):
                if op.link.to == self._threads[self._at].rank and (op.place, op.version) in self._used[self._at]:
                    self._landing(op, k, sender)
        for op in self._ops:
            self._log(op)
        self._uses.sort(key=lambda fields: fields[9])
        return {"uses": self._uses, "names": [[s, name] for name, s in self._serials.items()], "released": []}

    def _use(
        self, writes: bool, place: Place | None, op: Op, peer: int | None, channel: str, span: tuple[int, int]
    ) -> None:
        serial = None
        lo = 0
        if place is not None:
            serial = self._serials.setdefault(place.buffer, len(self._serials))
            lo = place.region
        where = f"layer {op.layer}"
        self._uses.append([writes, serial, lo, lo + 1, op.kind, op.step, where, peer, channel, *span])

    def _landing(self, op: Op, k: int, sender: int) -> None:
        """Log the remote write of the k-th send on a link: it may begin once this thread has given credit for it."""
        credited = any(mine.kind == "credit" for mine in self._ops)
        begin = self._first("credit", op.link, k) if credited else 1
        self._use(True, op.place, op, sender, _channel(op.link), (begin, self._first("arrived", op.link, k)))

    def _log(self, op: Op) -> None:
        at = self._when[id(op)]
        if op.kind in ("read", "write"):
            self._use(op.kind == "write", op.place, op, None, "", (at, at + 1))
        elif op.kind == "send":
            self._sends[op.link] += 1
            end = self._first("sent", op.link, self._sends[op.link])
            source = op.source
            for peer, thread in enumerate(self._threads):
                if thread.rank == op.link.to and (op.place, op.version) in self._used[peer]:
                    self._use(False, source, op, peer, _channel(op.link), (at, end))
                    source = None  # one send, though several threads over there learn of its landing
        elif op.kind in ("signal", "wait"):
            for peer, thread in enumerate(self._threads):
                if peer != self._at:
                    self._flags(op, peer, thread.ops, at)

    def _flags(self, op: Op, peer: int, theirs: list[Op], at: int) -> None:
        """Log the messages that a flag of this thread or of ``theirs`` is."""
        other = "wait" if op.kind == "signal" else "signal"
        common = {flag for their in theirs if their.kind == other for flag in their.flags} & set(op.flags)
        for flag in sorted(common):
            waits = op.kind == "wait"
            self._use(waits, None, op, peer, flag, (1 if waits else at, at))

    def _first(self, kind: str, link: Link, at_least: int) -> int:
        ops = (op for op in self._ops if op.kind == kind and op.link == link and op.n >= at_least)
        return next((self._when[id(op)] for op in ops), _NEVER)


def _channel(link: Link) -> str:
    return f"link {link}"


def _numbered_sends(ops: list[Op]) -> list[tuple[int, Op]]:
    count: dict[Link, int] = defaultdict(int)
    numbered = []
    for op in ops:
        if op.kind == "send":
            count[op.link] += 1
            numbered.append((count[op.link], op))
    return numbered


def _used(ops: list[Op]) -> set[Brought]:
    """Return what a thread uses of what others may bring: it computes on it, or sends it on."""
    computed = {(op.place, op.version) for op in ops if op.kind == "read"}
    return computed | {(op.source, op.version) for op in ops if op.kind == "send"}
