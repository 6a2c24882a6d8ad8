"""A ledger of ping-pong buffers and sets of semaphores: none is handed out while an operation may still use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from refsim.base.errors import HazardError


@dataclass
class Loan:
    """A buffer (or set of semaphores) in use: ``reader`` is who reads it, ``issued`` whether that is on its way."""

    key: Any
    slot: int
    reader: str
    axis: int
    issued: bool = False

    def read(self) -> None:
        """Note that the operation that reads the buffer has been issued."""
        self.issued = True


@dataclass
class BufferLedger:
    """The ledger of who reads which ping-pong buffer or set of semaphores.

    ``lend`` gives the buffers of a key in turn. A buffer comes back when something all devices take part in has
    passed after its reader was issued: a later collective on that axis, or a device synchronisation.
    """

    slots: int = 2
    _turn: dict[Any, int] = field(default_factory=dict)
    _loans: dict[tuple[Any, int], Loan] = field(default_factory=dict)

    def lend(self, key: Any, axis: int, reader: str) -> Loan:
        """Hand out the next buffer of ``key`` for ``reader``; ``HazardError`` if someone may still be reading it."""
        slot = self._turn.get(key, 0)
        former = self._loans.get((key, slot))
        if former is not None:
            raise HazardError(
                f"buffer {slot} of {key} is handed to {reader} while {former.reader} may still read it; "
                f"synchronise axis {former.axis} first."
            )
        self._turn[key] = (slot + 1) % self.slots
        loan = Loan(key, slot, reader, axis)
        self._loans[key, slot] = loan
        return loan

    def synchronised(self, axis: int | None = None) -> None:
        """Note that all devices of ``axis`` (None: all devices) have met: what was issued before has been read."""
        for place, loan in list(self._loans.items()):
            if loan.issued and axis in (None, loan.axis):
                del self._loans[place]
