"""Seeded disturbances of runs on 8 and 32 ranks: which, where and when; nothing here runs anything."""

from __future__ import annotations

import random
from dataclasses import dataclass

SHARES = {
    "kill": 30,
    "exception": 30,
    "exit": 20,
    "hang": 10,
    "busy": 8,
    "delay": 20,
    "memory_at_once": 10,
    "memory_growing": 12,
    "full_disk": 20,
    "closed_stdout": 14,
    "ctrl_c": 14,
    "sigterm": 6,
    "launcher_killed": 6,
}
"""How often each kind comes among 200."""

ON_RANKS = ("kill", "exception", "exit", "hang", "busy", "delay", "memory_at_once", "memory_growing")


@dataclass(frozen=True)
class Disturbance:
    """One case.

    Attributes:
        kind: a key of ``SHARES``.
        ranks: a key of ``Files.workloads``.
        rank: whom it meets, where it meets a rank.
        moment: 0..1 of that rank's events, or of the run's seconds.
        number: exit code, hundredths of a second of delay, or what the exception says.
        workload: index into the workloads of that many ranks.
    """

    index: int
    kind: str
    ranks: int
    rank: int
    moment: float
    number: int
    workload: int

    def __str__(self) -> str:
        return f"{self.index}-{self.kind}-{self.ranks}ranks-rank{self.rank}-at{self.moment:.3f}"


def plan(runs: int, seed: int, kinds: tuple[str, ...] = tuple(SHARES), sizes: tuple[int, ...] = (8, 8, 32)):
    """``runs`` disturbances: every kind by its share, at least one of each, in random order."""
    chance = random.Random(seed)
    total = sum(SHARES[kind] for kind in kinds)
    counts = {kind: max(1, runs * SHARES[kind] // total) for kind in kinds}
    order = sorted(kinds, key=lambda kind: -SHARES[kind])
    while sum(counts.values()) != runs:
        missing = runs - sum(counts.values())
        for kind in order[: abs(missing)]:
            counts[kind] = max(0, counts[kind] + (1 if missing > 0 else -1))
    chosen = [kind for kind in kinds for _ in range(counts[kind])]
    chance.shuffle(chosen)
    cases = []
    for index, kind in enumerate(chosen):
        ranks = chance.choice(sizes)
        cases.append(
            Disturbance(
                index,
                kind,
                ranks,
                chance.randrange(ranks),
                chance.random(),
                chance.randint(1, 200),
                chance.randrange(2),
            )
        )
    return cases
