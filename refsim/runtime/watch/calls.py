"""The collectives that every rank calls, numbered within each group, so that ranks that disagree are told apart.

    rank 0   all_gather(float32 [4, 8], dim=0)  --header of each message-->  rank 1   all_gather(int32 [4, 8], dim=0)
       |                                                                       |      differs: DivergedError
       '--> StatusBoard.add_call <---------------------------------------------'
                    '--> launcher: which of the members made another call than the others, or one call fewer

The members of a group make the same calls in the same order; what a call passes, all of them pass alike.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the launcher reads calls, and starts without torch
    from torch import Tensor

    from refsim.runtime.group import Group


class Call(NamedTuple):
    """One collective call of a rank.

    Attributes:
        group: a number that the members of one group share and other groups do not (but for a chance of 2**-32).
        number: how many calls this rank has made in the group before.
        encoded: name, dtype, shape and options of the call, and the name of the group.
    """

    group: int
    number: int
    encoded: bytes

    @property
    def text(self) -> str:
        """Return ``encoded`` as it is read."""
        return self.encoded.decode(errors="replace")

    @property
    def header(self) -> bytes:
        """Return what every message of the call carries; equal on all members."""
        return (b"%d %b" % (self.number, self.encoded))[:MOST_BYTES]


MOST_BYTES = 176
"""Bytes of a header, at most; a longer one is cut."""

NONE = b"- no collective"
"""Header of a message that belongs to no call: a rank hands in its answer with those."""


class CallCounter:
    """Numbers the calls of one rank."""

    def __init__(self) -> None:
        self._made: Counter[int] = Counter()
        self._groups: dict[tuple[int, ...], int] = {}

    def next(self, name: str, group: Group, moved: tuple[Tensor, ...], options: Mapping[str, object]) -> Call:
        """Return this rank's next call in a group."""
        key = self._groups.get(group.ranks)
        if key is None:
            key = zlib.crc32(repr(group.ranks).encode())
            self._groups[group.ranks] = key
        number = self._made[key]
        self._made[key] = number + 1
        what = (moved[0].dtype, moved[0].shape) if moved else (None, ())
        return Call(key, number, _encoded(name, group.name, *what, tuple(options.items())))


@lru_cache(maxsize=4096)  # most calls have been made before, by this job or one before it
def _encoded(
    name: str, group: str, dtype: Any, shape: tuple[int, ...], options: tuple[tuple[str, object], ...]
) -> bytes:
    passed = [f"{str(dtype).removeprefix('torch.')} {list(shape)}"] if dtype else []
    passed += [f"{option}={value}" for option, value in options]
    return f"{name}({', '.join(passed)}) over {group}".encode()


def text_of(header: bytes) -> str:
    """Return the call that a header names, without its number."""
    return header.decode(errors="replace").partition(" ")[2] or "nothing"


@dataclass(frozen=True)
class Divergence:
    """The first call at which ranks disagree.

    Attributes:
        rank: the rank that differs from most of those it is compared with; of two, the higher one.
        number: of the call within its group.
        made: what that rank called; None if its program ended before.
        expected: what the others called; None if their programs ended before.
        others: ranks that called that.
        certain: whether they are more than those that differ; others may be on their way to the call.
    """

    rank: int
    number: int
    made: str | None
    expected: str | None
    others: tuple[int, ...]
    certain: bool = True

    @property
    def sentence(self) -> str:
        """Say it as ``rank 1 called ... where rank 0 called ...``."""
        one = len(self.others) == 1
        those = ("rank " if one else "ranks ") + ", ".join(map(str, self.others))
        called = f"called {self.made}" if self.made else "ended its program"
        expected = f"called {self.expected}" if self.expected else "ended their program"
        return f"rank {self.rank} {called} where {those} {expected} (call {self.number} of the group)"


def first_difference(
    calls: Mapping[int, Iterable[Call]], ended: Iterable[int] = (), waits_for: Mapping[int, int] | None = None
) -> Divergence | None:
    """Return the first call at which ranks disagree, None if what is known of them agrees.

    Args:
        calls: the last calls of each rank, in order.
        ended: ranks whose program has ended, which make no further call.
        waits_for: the rank whose message a rank waits for, where it waits.
    """
    by_call: dict[tuple[int, int], dict[int, str]] = {}
    for rank, made in calls.items():
        for call in made:
            by_call.setdefault((call.group, call.number), {})[rank] = call.text
    differing = [key for key, texts in by_call.items() if len(set(texts.values())) > 1]
    if differing:
        group, number = min(differing, key=lambda key: (_place(calls, key), key))
        return _odd_one(by_call, group, number)
    for rank, peer in (waits_for or {}).items():
        last = next(reversed(list(calls.get(rank, ()))), None)
        if last is not None and peer in ended and _made(calls[peer], last.group) <= last.number:
            return _fewer(by_call, calls, ended, last.group, _made(calls[peer], last.group))
    return None


def _made(calls: Iterable[Call], group: int) -> int:
    """Return how many calls a rank has made in a group, as far as that is known."""
    return max((call.number + 1 for call in calls if call.group == group), default=0)


def _fewer(
    by_call: Mapping[tuple[int, int], Mapping[int, str]],
    calls: Mapping[int, Iterable[Call]],
    ended: Iterable[int],
    group: int,
    number: int,
) -> Divergence | None:
    """Return who made a call that others of the group ended without, or the other way round: the fewer ones."""
    callers = by_call.get((group, number))
    if not callers:  # so long ago that nobody remembers it
        return None
    text = callers[min(callers)]
    members = {rank for (key, _), texts in by_call.items() if key == group for rank in texts}
    without = sorted(rank for rank in ended if rank in members and _made(calls[rank], group) == number)
    if len(without) > len(callers):
        return Divergence(min(callers), number, text, None, tuple(without))
    return Divergence(without[0], number, None, text, tuple(sorted(callers))) if without else None


def _place(calls: Mapping[int, Iterable[Call]], key: tuple[int, int]) -> int:
    """Return how many of the calls that are still known of a rank came before this one, the least of all ranks."""
    return min(place for made in calls.values() for place, call in enumerate(made) if (call.group, call.number) == key)


def _odd_one(by_call: Mapping[tuple[int, int], Mapping[int, str]], group: int, number: int) -> Divergence:
    """Return who differs at a call: the fewest of the group's members; of two, whom fewer of all ranks agree with."""
    texts = by_call[group, number]
    votes = Counter(texts.values())
    # Groups of one name run the same program, so their members' calls of this number decide between two.
    all_votes = Counter(text for key, others in by_call.items() if key[1] == number for text in others.values())
    expected = max(votes, key=lambda text: (votes[text], all_votes[text], -min(_ranks(texts, text))))
    rank = min(rank for rank, text in texts.items() if text != expected)
    certain = votes[expected] > votes[texts[rank]]
    return Divergence(rank, number, texts[rank], expected, _ranks(texts, expected), certain)


def _ranks(texts: Mapping[int, str], text: str) -> tuple[int, ...]:
    return tuple(sorted(rank for rank, other in texts.items() if other == text))
