"""Seeded disturbances: pauses, and other orders of operations that do not depend on each other.

Nothing of this may change the answer. ``parity.run.schedules`` runs cases under many seeds.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from refsim.runtime.group import Group

T = TypeVar("T")
_PACES = (0.1, 1.0)
"""A rank draws one of these; it scales the rank's pauses, so that some ranks run ahead of others."""


class Delays:
    """The order and the pace of one rank; without a seed they are the program's own."""

    def __init__(self, rank: int = 0, seed: int | None = None, longest_s: float = 0.0) -> None:
        self._seed = seed
        self._longest_s = longest_s
        self._random = random.Random(f"{seed} rank {rank}")
        self._pace = self._random.choice(_PACES)
        self._agreed: Counter[tuple[int, ...]] = Counter()

    def pause(self) -> None:
        """Sleep up to the longest pause."""
        if self._seed is not None and self._longest_s:
            time.sleep(self._random.random() * self._longest_s * self._pace)

    def shuffle(self, items: Iterable[T]) -> list[T]:
        """Return ``items`` in an order of this rank's own."""
        items = list(items)
        if self._seed is not None:
            self._random.shuffle(items)
        return items

    def interleave(self, sequences: Iterable[Sequence[Callable[[], T]]]) -> list[T]:
        """Call everything in ``sequences``, mixed in an order of this rank's own; each sequence keeps its order."""
        sequences = [sequence for sequence in sequences if sequence]
        if self._seed is None:
            return [call() for sequence in sequences for call in sequence]
        turns = self.shuffle(index for index, sequence in enumerate(sequences) for _ in sequence)
        rest = [iter(sequence) for sequence in sequences]
        return [next(rest[index])() for index in turns]

    def agreed(self, items: Iterable[Any], group: Group) -> list[Any]:
        """Return ``items`` in an order that all members of ``group`` draw alike; it is for whole collectives."""
        items = list(items)
        if self._seed is not None:
            self._agreed[group.ranks] += 1
            random.Random(f"{self._seed} group {group.ranks} {self._agreed[group.ranks]}").shuffle(items)
        return items
