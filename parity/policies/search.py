"""Every interleaving of a small program, breadth first: the shortest way to go wrong, or none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from parity.policies.operations import Link, Op, Program
from refsim.base.errors import UserError

State = tuple[tuple[int, ...], tuple[int, ...]]
"""Per thread how many half operations are done (a read has two halves), and per link how many transfers landed."""


@dataclass
class Explored:
    """What breadth-first search found: all states if ``wrong`` is empty, else the shortest way to go wrong."""

    states: int
    wrong: str = ""
    schedule: list[str] = field(default_factory=list)


class _States:
    """The states of a program: how far every thread has come, and how many transfers every link has delivered.

    A read takes two halves, its beginning and its end, so that something may land in between.
    """

    def __init__(self, threads: Program) -> None:
        self._threads = threads
        self._halves = [
            [(op, h) for op in thread.ops for h in ((0, 1) if op.kind == "read" else (0,))] for thread in threads
        ]
        sends: dict[Link, list[Op]] = {}
        self._sender: list[int] = []
        for at, thread in enumerate(threads):
            for op in thread.ops:
                if op.kind == "send":
                    if op.link not in sends:
                        sends[op.link] = []
                        self._sender.append(at)
                    sends[op.link].append(op)
        self._number = {link: i for i, link in enumerate(sends)}
        self._links = list(sends)
        self._sends = list(sends.values())
        self._into = [[i for i, link in enumerate(self._links) if link.to == thread.rank] for thread in threads]
        self._out_of = [[i for i, sender in enumerate(self._sender) if sender == at] for at in range(len(threads))]
        # how far a thread has come in sends, credits and flags after so many halves
        self._begun = [
            _running(self._halves[at], lambda op, link=link: op.kind == "send" and op.link == link)
            for link, at in zip(self._links, self._sender, strict=True)
        ]
        self._credit = [
            [(at, _latest(half, link)) for at, half in enumerate(self._halves) if threads[at].rank == link.to]
            for link in self._links
        ]
        self._raised = {
            flag: (at, _running(half, lambda op, flag=flag: op.kind == "signal" and flag in op.flags))
            for at, half in enumerate(self._halves)
            for flag in {flag for op, _ in half if op.kind == "signal" for flag in op.flags}
        }

    @property
    def start(self) -> State:
        return (0,) * len(self._threads), (0,) * len(self._links)

    def ended(self, state: State) -> bool:
        """Whether every thread is at its end."""
        return all(at == len(halves) for at, halves in zip(state[0], self._halves, strict=True))

    def following(self, state: State) -> Iterator[tuple[State, str]]:
        """Yield every state that may come next, and what happens on the way."""
        at, delivered = state
        for thread, halves in enumerate(self._halves):
            if at[thread] < len(halves) and self._enabled(state, thread):
                op, half = halves[at[thread]]
                verb = ("ends " if half else "begins ") if op.kind == "read" else "does "
                yield (_plus(at, thread), delivered), f"{self._threads[thread]} {verb}{op}"
            for link in self._out_of[thread]:
                if delivered[link] < self._posted(state, link):
                    op = self._sends[link][delivered[link]]
                    yield (at, _plus(delivered, link)), f"{self._threads[thread]}'s {op} lands"

    def wrong(self, state: State) -> str:
        """Say what is wrong in a state, in one sentence; empty if nothing is."""
        for thread in range(len(self._threads)):
            if wrong := self._wrong_read(state, thread):
                return wrong
        for link in range(len(self._links)):
            for out in self._flying(state, link):
                if out.source is not None and (wrong := self._overwritten_source(state, link, out)):
                    return wrong
        return ""

    def _overwritten_source(self, state: State, link: int, out: Op) -> str:
        """Say what lands on the memory that a send still reads."""
        for other in self._into[self._sender[link]]:
            for send in self._flying(state, other):
                if send.place == out.source:
                    victim = self._threads[self._sender[link]]
                    return f"{self._name(other)} {send} overwrites what {victim}'s {out} still sends"
        return ""

    def _wrong_read(self, state: State, thread: int) -> str:
        """Say what is wrong with the read that a thread is in the middle of; what flies may land on it at any time."""
        if state[0][thread] == len(self._halves[thread]):
            return ""
        op, half = self._halves[thread][state[0][thread]]
        if op.kind != "read" or not half:
            return ""
        whose = str(self._threads[thread])
        brought = False
        for link in self._into[thread]:
            for send in self._flying(state, link):
                if send.place == op.place:
                    rank = f"rank {self._threads[thread].rank}"
                    return f"{self._name(link)} {send} overwrites {rank}'s buffer under {whose}'s {op}"
            landed = reversed(self._sends[link][: state[1][link]])
            last = next((send for send in landed if send.place == op.place), None)
            if last is not None and last.version != op.version and op.version[1] != self._threads[thread].rank:
                return f"{whose}'s {op} finds what {self._name(link)} {last} has put there"
            brought = brought or last is not None
        if not brought and op.version[1] != self._threads[thread].rank:
            return f"{whose}'s {op} finds nothing there yet"
        return ""

    def _name(self, link: int) -> str:
        return f"{self._threads[self._sender[link]]}'s"

    def _posted(self, state: State, link: int) -> int:
        return self._begun[link][state[0][self._sender[link]]]

    def _flying(self, state: State, link: int) -> list[Op]:
        return self._sends[link][state[1][link] : self._posted(state, link)]

    def _enabled(self, state: State, thread: int) -> bool:
        """Whether a thread may take its next half."""
        at, delivered = state
        op = self._halves[thread][at[thread]][0]
        if op.kind == "send":
            credits = (counts[at[other]] for other, counts in self._credit[self._number[op.link]])
            return not op.n or max(credits) >= op.n
        if op.kind in ("arrived", "sent"):
            return op.n <= 0 or delivered[self._number[op.link]] >= op.n
        if op.kind == "wait":
            return all(counts[at[other]] > op.n for other, counts in map(self._raised.__getitem__, op.flags))
        return True


def explore(threads: Program, limit: int = 2_000_000) -> Explored:
    """Search every interleaving of a program, delivered in order per link.

    Raises:
        UserError: there are more than ``limit`` states.
    """
    states = _States(threads)
    came: dict[State, tuple[State, str] | None] = {states.start: None}
    queue = deque([states.start])
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


def _running(halves: list[tuple[Op, int]], counts: Callable[[Op], bool]) -> list[int]:
    counts_so_far = [0]
    for op, _ in halves:
        counts_so_far.append(counts_so_far[-1] + bool(counts(op)))
    return counts_so_far


def _latest(halves: list[tuple[Op, int]], link: Link) -> list[int]:
    """Return the credit that a thread has given for a link after so many halves."""
    credits = [0]
    for op, _ in halves:
        credits.append(op.n if op.kind == "credit" and op.link == link else credits[-1])
    return credits


def _plus(counts: tuple[int, ...], at: int) -> tuple[int, ...]:
    return (*counts[:at], counts[at] + 1, *counts[at + 1 :])


def _path(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels: list[str] = []
    while (before := came[state]) is not None:
        state, label = before
        labels.append(label)
    return labels[::-1]
