"""Buffer policies of ring attention, model-checked: which of them survive every delay?

A policy is a program per rank over an abstract ring: rank i writes shards into buffers of rank i+1 over one ordered
link, computes on what has arrived, and goes on to the next layer. Nothing else synchronises the ranks, as nothing else
does along the sequence axis of a transformer.

    upstream    K and V each gathered whole into one of the two ping-pong buffers of their common key; the next layer
                has the same key, so it writes the same two buffers again; no barrier (facts read from tt_dit's code)
    barrier     the same with a barrier along the axis at the end of every call
    alternate   a pair per tensor: layers alternate between two gathered buffers of K, and two of V
    slots       two shard-sized slots per tensor, a step alternates; a sender does not ask      (refsim's, crippled)
    credit      the same, but a sender writes only after the receiver has freed the slot        (refsim's)

Judged in three ways that must agree:
    proof       vector clocks over the program (``refsim.runtime.hazards``): holds for every delay
    exhaustive  breadth-first over all interleavings of a small ring: the shortest schedule that goes wrong
    sampled     seeded delays on a clock, any size: which read gets bytes of the wrong layer, and from what lag on
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from refsim.errors import UserError
from refsim.runtime.hazards import Hazard, find

POLICIES = ("upstream", "barrier", "alternate", "slots", "credit")
LAYERS = 4
"""Enough for every policy to come back to each of its buffers, twice for most."""
_NEVER = 1 << 62


class Place(NamedTuple):
    """A region of a buffer of one rank."""

    buffer: str
    region: int


@dataclass(frozen=True)
class Op:
    """One operation of a rank.

    ``send`` puts version ``version`` into ``place`` of the next rank, out of ``source`` here, if credit ``n`` is there;
    ``read`` computes on ``place``, which must hold ``version``; ``write`` fills it locally; ``arrived`` waits for the
    n-th arrival, ``sent`` until n sends have left; ``credit`` frees the n-th slot; ``arrive`` and ``barrier`` are the
    two halves of the n-th barrier; ``work`` is the rest of a layer.
    """

    kind: str
    layer: int
    step: int
    place: Place | None = None
    version: tuple[int, int] = (0, 0)
    source: Place | None = None
    n: int = 0

    def __str__(self) -> str:
        where = f" {self.place.buffer}[shard {self.version[1]}]" if self.place else ""
        return f"{self.kind} of layer {self.layer}, step {self.step}{where}"


Program = list[list[Op]]


def program(policy: str, ranks: int, layers: int = LAYERS, tensors: str = "KV") -> Program:
    """The operations of every rank under a policy.

    Raises:
        UserError: no such policy, or fewer than two ranks or three layers.
    """
    if policy not in POLICIES:
        raise UserError(f"policy '{policy}' does not exist; choose one of {', '.join(POLICIES)}.")
    if ranks < 2 or layers < 3:
        raise UserError("a policy needs 2 ranks to go wrong and 3 layers to use all its buffers again; give more.")
    build = _slots if policy in ("slots", "credit") else _gathered
    return [list(build(policy, rank, ranks, layers, tensors)) for rank in range(ranks)]


def _gathered(policy: str, i: int, n: int, layers: int, tensors: str) -> Iterator[Op]:
    sent = arrived = 0
    for layer in range(layers):
        name = {t: t if policy != "alternate" else f"{t}{layer % 2}" for t in tensors}
        for step in range(n):
            shard = (i - step) % n
            if step:
                arrived += len(tensors)
                yield Op("arrived", layer, step, n=arrived)
            if step < n - 1:
                for t in tensors:
                    sent += 1
                    place = Place(name[t], shard)
                    yield Op("send", layer, step, place, (layer, shard), place if step else None)
            for t in tensors if step else "":  # its own shard it reads from the input
                yield Op("read", layer, step, Place(name[t], shard), (layer, shard))
            if not step:
                yield Op("work", layer, step, n=1)
        yield Op("sent", layer, n - 1, n=sent)
        if policy == "barrier":
            yield Op("arrive", layer, n - 1, n=layer)
            yield Op("barrier", layer, n - 1, n=layer)
        yield Op("work", layer, n - 1)


def _slots(policy: str, i: int, n: int, layers: int, tensors: str) -> Iterator[Op]:
    sent = arrived = credits = 0
    for layer in range(layers):
        for t in tensors:
            yield Op("write", layer, 0, Place(f"{t}[0]", 0), (layer, i))
        for step in range(n):
            shard = (i - step) % n
            if step:
                yield Op("sent", layer, step, n=sent)
            if step < n - 1 and policy == "credit":
                credits += len(tensors)
                yield Op("credit", layer, step, n=credits)
            if step:
                arrived += len(tensors)
                yield Op("arrived", layer, step, n=arrived)
            if step < n - 1:
                for t in tensors:
                    sent += 1
                    here, there = Place(f"{t}[{step % 2}]", 0), Place(f"{t}[{(step + 1) % 2}]", 0)
                    yield Op("send", layer, step, there, (layer, shard), here, n=sent if policy == "credit" else 0)
            for t in tensors:
                yield Op("read", layer, step, Place(f"{t}[{step % 2}]", 0), (layer, shard))
        yield Op("sent", layer, n - 1, n=sent)
        yield Op("work", layer, n - 1)


# Proof ----------------------------------------------------------------------------------------------------------------


def prove(programs: Program) -> list[Hazard]:
    """The hazards of a program, by happens-before alone: none means safe whatever the delays."""
    return find([_log(programs, rank) for rank in range(len(programs))])


def _log(programs: Program, rank: int) -> dict[str, Any]:
    """What ``UseLog`` would hold after ``rank`` has run its program."""
    n, ops = len(programs), programs[rank]
    sends = [[op for op in ops if op.kind == "send"] for ops in programs]
    uses: list[list[Any]] = []
    serials: dict[str, int] = {}

    def use(writes: bool, place: Place | None, op: Op, peer: int | None, channel: int, begin: int, end: int) -> None:
        serial, lo = (None, 0) if place is None else (serials.setdefault(place.buffer, len(serials)), place.region)
        where = f"layer {op.layer}"
        uses.append([writes, serial, lo, lo + 1, op.kind, op.step, where, peer, channel, begin, end])

    when = {id(op): 10 * (at + 1) for at, op in enumerate(ops)}

    def first(kind: str, at_least: int) -> int:
        return next((when[id(op)] for op in ops if op.kind == kind and op.n >= at_least), _NEVER)

    credited = any(op.kind == "credit" for op in ops)
    for k, op in enumerate(sends[rank - 1], 1):
        use(True, op.place, op, (rank - 1) % n, 0, first("credit", k) if credited else 1, first("arrived", k))
    for op in ops:
        at = when[id(op)]
        if op.kind == "send":
            k = 1 + next(i for i, sent in enumerate(sends[rank]) if sent is op)
            use(False, op.source, op, (rank + 1) % n, 0, at, first("sent", k))
        elif op.kind in ("read", "write"):
            use(op.kind == "write", op.place, op, None, 0, at, at + 1)
        elif op.kind in ("arrive", "barrier"):
            waits = op.kind == "barrier"
            for peer in set(range(n)) - {rank}:
                use(waits, None, op, peer, 1, 1 if waits else at, at)
    uses.sort(key=lambda fields: fields[9])
    return {"uses": uses, "names": [[s, name] for name, s in serials.items()], "released": []}


# Exhaustive -----------------------------------------------------------------------------------------------------------

State = tuple[tuple[int, ...], tuple[int, ...]]
"""Per rank how many half operations are done (a read has two halves), and how many transfers its link has delivered."""


@dataclass
class Explored:
    """What breadth-first search found: all states if ``wrong`` is empty, else the shortest way to go wrong."""

    states: int
    wrong: str = ""
    schedule: list[str] = field(default_factory=list)


class _States:
    """The states of a program: how far every rank has come, and how many of its sends have been delivered.

    A read takes two halves, its beginning and its end, so that something may land in between.
    """

    def __init__(self, programs: Program) -> None:
        self.ranks = range(len(programs))
        self._halves = [[(op, h) for op in ops for h in ((0, 1) if op.kind == "read" else (0,))] for ops in programs]
        self._sends = [[op for op in ops if op.kind == "send"] for ops in programs]
        # how far a rank has come in sends, credits and barriers after so many halves
        self._begun = [_running(h, lambda op: op.kind == "send") for h in self._halves]
        self._credit = [_latest(h, "credit") for h in self._halves]
        self._joined = [_running(h, lambda op: op.kind == "arrive") for h in self._halves]

    def ended(self, state: State) -> bool:
        """Whether every rank is at its end."""
        return all(state[0][rank] == len(self._halves[rank]) for rank in self.ranks)

    def following(self, state: State) -> Iterator[tuple[State, str]]:
        """Every state that may come next, and what happens on the way."""
        at, delivered = state
        for rank in self.ranks:
            if self._enabled(state, rank):
                op, half = self._halves[rank][at[rank]]
                verb = ("ends " if half else "begins ") if op.kind == "read" else "does "
                yield (_plus(at, rank), delivered), f"rank {rank} {verb}{op}"
            if delivered[rank] < self._begun[rank][at[rank]]:
                op = self._sends[rank][delivered[rank]]
                yield (at, _plus(delivered, rank)), f"rank {rank}'s {op} lands"

    def wrong(self, state: State) -> str:
        """What is wrong in a state, in one sentence; empty if nothing is."""
        at, delivered = state
        for rank in self.ranks:
            flying = self._sends[rank - 1][delivered[rank - 1] : self._begun[rank - 1][at[rank - 1]]]
            sender = f"rank {(rank - 1) % len(self.ranks)}'s"
            if wrong := self._wrong_read(state, rank, flying, sender):
                return wrong
            for out in self._sends[rank][delivered[rank] : self._begun[rank][at[rank]]]:
                for send in flying:
                    if out.source is not None and send.place == out.source:
                        return f"{sender} {send} overwrites what rank {rank}'s {out} still sends"
        return ""

    def _wrong_read(self, state: State, rank: int, flying: list[Op], sender: str) -> str:
        """What is wrong with the read that a rank is in the middle of; ``flying`` may land on it at any time."""
        at, delivered = state
        if at[rank] == len(self._halves[rank]):
            return ""
        op, half = self._halves[rank][at[rank]]
        if op.kind != "read" or not half:
            return ""
        for send in flying:
            if send.place == op.place:
                return f"{sender} {send} overwrites rank {rank}'s buffer under rank {rank}'s {op}"
        landed = reversed(self._sends[rank - 1][: delivered[rank - 1]])
        last = next((send for send in landed if send.place == op.place), None)
        if last is not None and last.version != op.version and op.version[1] != rank:
            return f"rank {rank}'s {op} finds what {sender} {last} has put there"
        return ""

    def _enabled(self, state: State, rank: int) -> bool:
        """Whether a rank may take its next half."""
        at, delivered = state
        if at[rank] == len(self._halves[rank]):
            return False
        op, following = self._halves[rank][at[rank]][0], (rank + 1) % len(self.ranks)
        if op.kind == "send":
            return not op.n or self._credit[following][at[following]] >= op.n
        if op.kind == "arrived":
            return delivered[rank - 1] >= op.n
        if op.kind == "sent":
            return delivered[rank] >= op.n
        if op.kind == "barrier":
            return all(self._joined[r][at[r]] > op.n for r in self.ranks)
        return True


def explore(programs: Program, limit: int = 2_000_000) -> Explored:
    """Every interleaving of a program, delivered in order per link.

    Raises:
        UserError: there are more than ``limit`` states.
    """
    states = _States(programs)
    start: State = (tuple(0 for _ in states.ranks), tuple(0 for _ in states.ranks))
    came: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if wrong := states.wrong(state):
            return Explored(len(came), wrong, _path(came, state))
        following = list(states.following(state))
        if not following and not states.ended(state):
            return Explored(len(came), "all ranks wait for each other", _path(came, state))
        for next_state, label in following:
            if next_state not in came:
                came[next_state] = state, label
                queue.append(next_state)
        if len(came) > limit:
            raise UserError(f"more than {limit} states; explore fewer ranks or layers.")
    return Explored(len(came))


def _running(halves: list[tuple[Op, int]], counts: Any) -> list[int]:
    found = [0]
    for op, _ in halves:
        found.append(found[-1] + bool(counts(op)))
    return found


def _latest(halves: list[tuple[Op, int]], kind: str) -> list[int]:
    found = [0]
    for op, _ in halves:
        found.append(op.n if op.kind == kind else found[-1])
    return found


def _plus(counts: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (*counts[:rank], counts[rank] + 1, *counts[rank + 1 :])


def _path(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels: list[str] = []
    while (before := came[state]) is not None:
        state, label = before
        labels.append(label)
    return labels[::-1]


# Sampled --------------------------------------------------------------------------------------------------------------


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


def seeded_stalls(programs: Program, seed: int, longest: float) -> dict[tuple[int, int], float]:
    """One stall of up to ``longest`` attention steps somewhere on each of up to half of the ranks."""
    rng = random.Random(seed)
    hit = rng.sample(range(len(programs)), rng.randint(1, max(1, len(programs) // 2)))
    return {(rank, rng.randrange(len(programs[rank]))): rng.uniform(0, longest) for rank in hit}


def simulate(programs: Program, stalls: dict[tuple[int, int], float], clock: Clock | None = None) -> Simulated:
    """Run a program on a clock; ``stalls`` holds (rank, index of the operation) -> units it starts late."""
    clock = clock or Clock()
    n = len(programs)
    now, at = [0.0] * n, [0] * n
    flights: list[list[tuple[float, float, Op]]] = [[] for _ in range(n)]  # by sender: begin, end, what
    credits: list[list[float]] = [[0.0] for _ in range(n)]  # time of the k-th credit a rank gave
    joined: dict[tuple[int, int], float] = {}
    reads: list[tuple[float, float, int, Op]] = []
    lines: list[tuple[float, str]] = []

    def ready(rank: int, op: Op) -> float | None:
        """When what ``op`` waits for has happened, None if that is not known yet."""
        if op.kind == "send" and op.n:
            given = credits[(rank + 1) % n]
            return given[op.n] if len(given) > op.n else None
        if op.kind in ("arrived", "sent"):
            flown = flights[rank - 1 if op.kind == "arrived" else rank]
            return (flown[op.n - 1][1] if len(flown) >= op.n else None) if op.n else 0.0
        if op.kind == "barrier":
            times = [joined.get((r, op.n)) for r in range(n)]
            return max(times) if None not in times else None
        return 0.0

    moved = True
    while moved:
        moved = False
        for rank, ops in enumerate(programs):
            while at[rank] < len(ops):
                op = ops[at[rank]]
                free = ready(rank, op)
                if free is None:
                    break
                begin = max(now[rank], free) + stalls.get((rank, at[rank]), 0.0)
                now[rank] = begin
                if op.kind == "send":
                    leaves = max([begin, *(end for _, end, _ in flights[rank][-1:])])
                    flights[rank].append((leaves, leaves + clock.transfer, op))
                elif op.kind == "read":
                    tensors = len({o.place.buffer[0] for o in ops if o.kind == "read"})
                    now[rank] = begin + 1 / tensors
                    reads.append((begin, now[rank], rank, op))
                elif op.kind == "work":
                    now[rank] = begin + (op.n or clock.rest)
                elif op.kind == "credit":
                    credits[rank] += [begin] * (op.n + 1 - len(credits[rank]))
                elif op.kind == "arrive":
                    joined[rank, op.n] = begin
                lines.append((begin, f"rank {rank} {op}"))
                at[rank] += 1
                moved = True
    found = sorted(_overwritten(reads, flights, n))
    return Simulated(found[0][1] if found else "", sorted(lines))


def _overwritten(
    reads: list[tuple[float, float, int, Op]], flights: list[list[tuple[float, float, Op]]], n: int
) -> Iterator[tuple[float, str]]:
    """Reads, by computing or by sending on, that a later version reaches before they are over."""
    outgoing = [(b, e, r, op) for r in range(n) for b, e, op in flights[r] if op.source is not None]
    for begin, end, rank, op in reads + outgoing:
        place = op.source if op.kind == "send" else op.place
        for leaves, _, send in flights[rank - 1]:
            if send.place == place and leaves < end and _newer(send, op):
                how = "under" if leaves > begin else "before"
                yield (
                    max(leaves, begin),
                    f"rank {(rank - 1) % n}'s {send} overwrites rank {rank}'s {place.buffer} from {leaves:.2f} on, "
                    f"{how} rank {rank}'s {op} at {begin:.2f} to {end:.2f}",
                )


def _newer(send: Op, reader: Op) -> bool:
    """Whether a send brings what comes after what the reader wants (its own step brings step + 1 over there)."""
    return (send.layer, send.step + 1) > (reader.layer, reader.step)


def critical_lag(policy: str, ranks: int, clock: Clock, *, longest: float = 64.0) -> float | None:
    """How late one rank has to be, in attention steps, right after its first sends, before values go wrong.

    None if no lag up to ``longest`` does it.
    """
    programs = program(policy, ranks)
    last_send = max(i for i, op in enumerate(programs[1]) if op.kind == "send" and (op.layer, op.step) == (0, 0))

    def goes_wrong(lag: float) -> bool:
        return bool(simulate(programs, {(1, last_send + 1): lag}, clock).wrong)

    if not goes_wrong(longest):
        return None
    low, high = 0.0, longest
    for _ in count():
        if high - low < 1e-3:
            return high
        middle = (low + high) / 2
        low, high = (low, middle) if goes_wrong(middle) else (middle, high)
    return None
