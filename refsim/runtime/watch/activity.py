"""What a rank is doing, as a typed fact: diagnosis, progress, timing and traces read its fields, people its sentence.

Device.report(activity) --> StatusBoard (encoded, fixed size) --> launcher: who waits for whom, who was doing what
                        --> Trace (op, step, collective, peer of an event)
                        --> ReadingDevice (the block that the ops which follow belong to)
"""

from __future__ import annotations

import enum
import functools
import struct
from typing import NamedTuple


class Kind(enum.IntEnum):
    """What sort of thing a rank is doing; the numbers are those on the board."""

    FORKED = 1
    JOINING = 2
    IDLE = 3
    TAKING = 4
    STARTING = 5
    LOADING = 6
    RUNNING = 7
    ENCODING = 8
    DECODING = 9
    DRAFTING = 10
    SCHEDULING = 11
    COMPUTING = 12
    COLLECTIVE = 13
    CONTINUING = 14
    POSTING = 15
    WAITING = 16
    HANDING_IN = 17


_VERBS = {
    Kind.FORKED: "being forked",
    Kind.CONTINUING: "continuing after",
    Kind.HANDING_IN: "handing in",
    Kind.WAITING: "waiting for",
}
"""Those that are not the kind's own name."""
_TRANSFERS = (Kind.POSTING, Kind.WAITING)
_NUMBERS = struct.Struct("=BBHiii")  # kind, bytes of ``what`` and of ``collective``, step, peer, block
_MOST_OF_WHAT = 120


class Activity(NamedTuple):
    """One thing that a rank does; a tuple, since a rank makes several in every op.

    Attributes:
        kind: what sort of thing.
        what: the object of it: ``sdpa``, ``send``, ``the text encoder``, or the group a collective runs over.
        collective: path of the collective it is part of, outermost first (``all_reduce/all_gather``).
        step: of that collective, of the scheme, or of the denoising loop; -1 where there are no steps.
        peer: global rank a transfer goes to or comes from, -1 for anything else.
        block: number of the model's block, -1 outside blocks.
    """

    kind: Kind
    what: str = ""
    collective: str = ""
    step: int = -1
    peer: int = -1
    block: int = -1

    def __str__(self) -> str:
        """Say it as people read it, without its subject: ``waiting for recv of step 3 of all_gather (from rank 1)``."""
        verb = _VERBS.get(self.kind, self.kind.name.lower())
        if self.kind is Kind.COLLECTIVE:
            return f"{self.collective} over {self.what}"
        if self.kind is Kind.CONTINUING:
            return f"{verb} {self.collective} over {self.what}"
        if self.kind in _TRANSFERS:
            return f"{verb} {self.transfer} {self.direction}"
        if self.kind is Kind.COMPUTING:
            return f"{verb} {self.transfer}"
        if self.kind is Kind.RUNNING and self.place:
            return f"{verb} {self.place}" + (f" with {self.what}" if self.what else "")
        named = ", ".join(part for part in (self.what, self.place) if part)
        return f"{verb} {named}".strip()

    def of_kind(self, kind: Kind) -> Activity:
        """Return the same with another kind."""
        return Activity(kind, *self[1:])

    @property
    def place(self) -> str:
        """Return where in the model and its loop the rank is, ``block 3``; empty where that is not known."""
        numbers = {"step": self.step, "block": self.block}
        return ", ".join(f"{name} {number}" for name, number in numbers.items() if number >= 0)

    @property
    def transfer(self) -> str:
        """Name the transfer or the computation without what is done about it: ``recv of step 3 of ring_attention``."""
        step = f" of step {self.step}" if self.step >= 0 else ""
        return f"{self.what}{step}" + (f" of {self.collective}" if self.collective else "")

    @property
    def direction(self) -> str:
        """Return where a transfer goes or comes from, ``(from rank 1)``."""
        return f"({'to' if self.what == 'send' else 'from'} rank {self.peer})"

    @property
    def clause(self) -> str:
        """Return what stands behind ``while it was``: the sentence, or the place where the rank stood."""
        return f"at '{self}'" if self.kind in (Kind.COLLECTIVE, Kind.IDLE) else str(self)

    def encode(self, size: int) -> bytes:
        """Pack the activity into at most ``size`` bytes of a fixed layout; names that do not fit are cut."""
        return _encoded(self, size)

    @classmethod
    def decode(cls, data: bytes) -> Activity:
        """Unpack what :meth:`encode` made."""
        kind, what, path, step, peer, block = _NUMBERS.unpack_from(data)
        texts = data[_NUMBERS.size : _NUMBERS.size + what + path]
        of_what, of_path = (text.decode(errors="ignore") for text in (texts[:what], texts[what:]))
        return cls(Kind(kind), of_what, of_path, step, peer, block)


@functools.lru_cache(maxsize=4096)  # a rank does the same few things over and over
def _encoded(activity: Activity, size: int) -> bytes:
    what = activity.what.encode(errors="replace")[:_MOST_OF_WHAT]
    path = activity.collective.encode(errors="replace")[: size - _NUMBERS.size - len(what)]
    numbers = _NUMBERS.pack(activity.kind, len(what), len(path), activity.step, activity.peer, activity.block)
    return numbers + what + path
