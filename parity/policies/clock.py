"""A program on a clock, with seeded delays: which read gets the wrong bytes, and from what lag on."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from parity.policies.operations import Fabric, Link, Op, Program
from parity.policies.program import program

Flight = tuple[float, float, Op, int]
"""When a transfer leaves and lands, what it is, and the number of the thread that sends it."""


@dataclass(frozen=True)
class Clock:
    """Durations in units of one attention step: the rest of a layer, a transfer."""

    rest: float = 1.0
    transfer: float = 0.5


@dataclass
class Simulated:
    """When everything happened: what went wrong (first in time), and one line per operation, in order."""

    wrong: str = ""
    lines: list[tuple[float, str]] = field(default_factory=list)


def seeded_stalls(threads: Program, seed: int, longest: float) -> dict[tuple[int, int], float]:
    """Draw one stall of up to ``longest`` attention steps somewhere on each of up to half of the threads."""
    rng = random.Random(seed)
    hit = rng.sample(range(len(threads)), rng.randint(1, max(1, len(threads) // 2)))
    return {(at, rng.randrange(len(threads[at].ops))): rng.uniform(0, longest) for at in hit}


class _Run:
    """A program under way."""

    def __init__(self, threads: Program, clock: Clock) -> None:
        self.threads = threads
        self.clock = clock
        self.flights: dict[Link, list[Flight]] = defaultdict(list)
        self.reads: list[tuple[float, float, int, Op]] = []
        self.lines: list[tuple[float, str]] = []
        self._credits: dict[Link, list[float]] = defaultdict(lambda: [0.0])  # time of the k-th credit given
        self._raised: dict[tuple[str, int], float] = {}

    def ready(self, op: Op) -> float | None:
        """Return when what ``op`` waits for has happened, None if that is not known yet."""
        if op.kind == "send" and op.n:
            credits = self._credits[op.link]
            return credits[op.n] if len(credits) > op.n else None
        if op.kind in ("arrived", "sent") and op.n > 0:
            flown = self.flights[op.link]
            return flown[op.n - 1][1] if len(flown) >= op.n else None
        if op.kind == "wait":
            times = [self._raised.get((flag, op.n)) for flag in op.flags]
            return max(times) if None not in times else None
        return 0.0

    def take(self, at: int, op: Op, begin: float) -> float:
        """Do an operation of thread ``at``; when it is over."""
        self.lines.append((begin, f"{self.threads[at]} {op}"))
        if op.kind == "send":
            flown = self.flights[op.link]
            leaves = max([begin, *(landed for _, landed, _, _ in flown[-1:])])
            flown.append((leaves, leaves + self.clock.transfer, op, at))
        elif op.kind == "read":
            end = begin + 1 / op.n
            self.reads.append((begin, end, at, op))
            return end
        elif op.kind == "work":
            return begin + (op.n or self.clock.rest)
        elif op.kind == "credit":
            credits = self._credits[op.link]
            credits += [begin] * (op.n + 1 - len(credits))
        elif op.kind == "signal":
            self._raised[op.flags[0], op.n] = begin
        return begin


def simulate(threads: Program, stalls: dict[tuple[int, int], float], clock: Clock | None = None) -> Simulated:
    """Run a program on a clock; ``stalls`` holds (thread, index of the operation) -> units it starts late."""
    run = _Run(threads, clock or Clock())
    now = [0.0] * len(threads)
    at = [0] * len(threads)
    moved = True
    while moved:
        moved = False
        for thread, ops in enumerate(thread.ops for thread in threads):
            while at[thread] < len(ops):
                op = ops[at[thread]]
                free = run.ready(op)
                if free is None:
                    break
                begin = max(now[thread], free) + stalls.get((thread, at[thread]), 0.0)
                now[thread] = run.take(thread, op, begin)
                at[thread] += 1
                moved = True
    problems = sorted([*_overwritten(run), *_too_early(run)])
    for stopped, done, end in zip(threads, at, now, strict=True):
        if done < len(stopped.ops):
            problems.append((end, f"{stopped}'s {stopped.ops[done]} waits for ever"))
    return Simulated(problems[0][1] if problems else "", sorted(run.lines))


def _overwritten(run: _Run) -> Iterator[tuple[float, str]]:
    """Yield reads, by computing or by sending on, that a later version reaches before they are over."""
    flights = [flight for flown in run.flights.values() for flight in flown]
    outgoing = [(leaves, lands, at, op) for leaves, lands, op, at in flights if op.source is not None]
    into = defaultdict(list)
    for flight in flights:
        into[flight[2].link.to, flight[2].place].append(flight)
    for begin, end, at, op in run.reads + outgoing:
        place = op.source if op.kind == "send" else op.place
        for leaves, _, send, sender in into[run.threads[at].rank, place]:
            if leaves < end and _newer(send, op):
                how = "under" if leaves > begin else "before"
                yield (
                    max(leaves, begin),
                    f"{run.threads[sender]}'s {send} overwrites rank {run.threads[at].rank}'s {place.buffer} from "
                    f"{leaves:.2f} on, {how} {run.threads[at]}'s {op} at {begin:.2f} to {end:.2f}",
                )


def _too_early(run: _Run) -> Iterator[tuple[float, str]]:
    """Yield reads that begin before what they want has landed."""
    landed = {
        (op.link.to, op.place, op.version): (lands, sender)
        for flown in run.flights.values()
        for _, lands, op, sender in flown
    }
    for begin, _, at, op in run.reads:
        lands, sender = landed.get((run.threads[at].rank, op.place, op.version), (0.0, 0))
        if lands > begin:
            yield (
                begin,
                f"{run.threads[at]}'s {op} begins at {begin:.2f}, before {run.threads[sender]}'s send has landed at "
                f"{lands:.2f}",
            )


def _newer(send: Op, reader: Op) -> bool:
    """Whether a send brings what comes after what the reader wants (its own step brings step + 1 over there)."""
    return (send.layer, send.step + 1) > (reader.layer, reader.step)


def critical_lag(
    policy: str, ranks: int, clock: Clock, *, longest: float = 64.0, fabric: Fabric | None = None
) -> float | None:
    """Return how late one rank has to be, in attention steps, after its first sends, before values go wrong.

    None if no lag up to ``longest`` does it.
    """
    threads = program(policy, ranks, fabric=fabric)
    first = next(
        i for i, op in enumerate(threads[1].ops) if op.kind in ("work", "read") and (op.layer, op.step) <= (0, 0)
    )

    def goes_wrong(lag: float) -> bool:
        return bool(simulate(threads, {(1, first): lag}, clock).wrong)

    if not goes_wrong(longest):
        return None
    low = 0.0
    high = longest
    for _ in count():
        if high - low < 1e-3:
            return high
        middle = (low + high) / 2
        low, high = (low, middle) if goes_wrong(middle) else (middle, high)
    return None
