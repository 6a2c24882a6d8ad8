"""What a run pads, and what that costs: noted where it happens, told by ``refsim run``, ``plan`` and ``explain``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

COSTS = {
    "heads": "attention's compute, activations and weights",
    "exchanged heads": "attention's compute and what is exchanged for it",
    "features": "compute, activations and weights of this width",
    "tokens": "compute and activations of the image's tokens",
    "prompt tokens": "compute and activations of the prompt's tokens",
}
"""What becomes larger where it is padded."""


@dataclass(frozen=True)
class Padded:
    """Zeros added so that every device has as much of something.

    Attributes:
        what: ``heads``, ``exchanged heads`` (of one tp member, which Ulysses cuts once more), ``features``,
            ``tokens`` (of a picture or video) or ``prompt tokens``.
        size, padded: how many there are, and how many with padding.
        over: what they are cut over: ``tp8``.
        extra: share by which compute and memory of what has them grow, 0.05 for 38 heads that become 40.
    """

    what: str
    size: int
    padded: int
    over: str
    extra: float

    def __str__(self) -> str:
        return f"{self.what} {self.size} -> {self.padded} over {self.over} (+{self.extra:.1%} of {COSTS[self.what]})"


_noted: ContextVar[dict[Padded, None] | None] = ContextVar("padded", default=None)


@contextmanager
def noting() -> Iterator[dict[Padded, None]]:
    """Collect what is padded meanwhile, each once, in order."""
    entries: dict[Padded, None] = {}
    token = _noted.set(entries)
    try:
        yield entries
    finally:
        _noted.reset(token)


def note(what: str, size: int, padded: int, over: str, factor: int) -> int:
    """Return ``padded``; if that is more than ``size``, whoever is ``noting`` gets to know."""
    entries = _noted.get()
    if entries is not None and padded != size:
        entries[Padded(what, size, padded, f"{over}{factor}", padded / size - 1)] = None
    return padded
