"""Draw mutations of files, run each by the cases that execute it, and note which survive."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Protocol

from parity.mutation import child, measure
from parity.mutation.equivalent import proof
from parity.mutation.measure import Executed, LineMap
from parity.mutation.sites import Mutation, drawn
from parity.mutation.tree import Tree, copied
from refsim.files.keys import Beside, Key

KILLED = "killed"
SURVIVED = "survived"
UNREACHED = "unreached"
EQUIVALENT = "equivalent"
UNTOLD = "untold"
"""A case fails; every case passes, or those that there was time for; no case executes it; proved to change nothing;
something fails that the unchanged program does not survive either: the machine, or an error of this tool."""

BOUND = "bound"
ERROR = "error"
HUNG = "hung"
"""How a mutation is killed: a case judges its answer wrong, it raises an error, or a case that runs it never ends."""

RUN_CASES = "parity.mutation.judge:run_cases"
CACHE = ".cache"
"""Folder in the copied tree, see :mod:`parity.mutation.cache`."""
PROCESS_S = 0.5
"""What a case takes besides what it computes."""
PAIR = 0.1
"""What a pair of words that no case before had is worth, of a word."""
START_S = 20.0
SLOWER = 10.0
"""A case that takes this long for its process and so many times its own time hangs."""


@dataclass(frozen=True)
class Limits:
    """How long a campaign lasts.

    Attributes:
        count: mutations at most.
        budget_s: seconds of the mutations, after the recording of lines; the last one comes to its end.
        each_s: seconds of one mutation.
    """

    count: int = 300
    budget_s: float = 1200.0
    each_s: float = 60.0

    @classmethod
    def of(cls, count: int, budget_s: float) -> Limits:
        """Return limits that leave one mutation a minute, or four times its part of a larger budget."""
        return cls(count, budget_s, max(cls.each_s, min(4 / count, 1) * budget_s))


@dataclass(frozen=True)
class Tried:
    """A mutation and what became of it.

    Attributes:
        mutation: the change.
        diff: the changed lines.
        verdict: ``killed``, ``survived``, ``unreached``, ``equivalent`` or ``untold``.
        by: the case that failed, if one did.
        how: of a killed one ``bound``, ``error`` or ``hung``.
        reason: why it failed; of an equivalent mutation the proof; of a survivor whether time ran out.
        ran, cases: how many cases ran and how many execute the line.
        seconds: wall time.
    """

    KEYS = ("mutation", "verdict", "by", "how", "reason", "ran", "cases", "diff", "rounded")

    mutation: Beside[Mutation]
    diff: str
    verdict: str
    by: str = ""
    reason: str = ""
    ran: int = 0
    cases: int = 0
    seconds: float = 0.0
    how: str = ""

    @property
    def rounded(self) -> Annotated[float, Key("seconds")]:
        """Wall time."""
        return round(self.seconds, 2)


@dataclass(frozen=True)
class Campaign:
    """What was asked for, the cases that failed without any change, and the mutations tried."""

    asked: measure.Asked
    seed: int
    troubled: list[Executed]
    tried: list[Tried]
    seconds: float


Progress = Callable[[int, Tried], None]


class Judge(Protocol):
    """Cases that a mutation is run by."""

    def recorded(self, tree: Tree, progress: measure.Progress) -> LineMap:
        """Run every case once on the unchanged tree and return which lines it executes."""
        ...

    def ordered(self, cases: list[Executed], file: str) -> list[Executed]:
        """Return the cases that execute a change of ``file`` in the order they are to run."""
        ...

    def run(self, tree: Tree, cases: list[Executed], limit_s: float, hear: child.Hear) -> child.Ended:
        """Run cases on the tree as it is, up to the first that fails.

        Args:
            limit_s: seconds after which whatever runs is killed.
            hear: called with the ``case``, ``verdict``, ``reason`` and ``error`` of each, as it comes.
        """
        ...


class ParityCases:
    """The cases of a parity suite, in children of this process."""

    def __init__(self, asked: measure.Asked, lines: Path | None) -> None:
        """Choose the cases; ``lines``: file of the map from lines to cases, see ``measure.measured``."""
        self._asked = asked
        self._lines = lines

    def recorded(self, tree: Tree, progress: measure.Progress) -> LineMap:
        """Run every case once, and have what they import imported by all children from now on."""
        line_map = measure.measured(self._asked, tree, self._lines, progress)
        if self._asked.backend != "cpu":
            from parity.mutation import cache

            line_map = replace(line_map, imported=[*line_map.imported, *cache.prepare(tree.root / CACHE)])
        child.preload(line_map.imported)
        return line_map

    def ordered(self, cases: list[Executed], file: str) -> list[Executed]:
        """Return the quick ones unlike those before them first."""
        return in_turn(cases, file)

    def run(self, tree: Tree, cases: list[Executed], limit_s: float, hear: child.Hear) -> child.Ended:
        """Run them in one child."""
        arguments = {
            "ids": [case.case for case in cases],
            "backend": self._asked.backend,
            "seed": self._asked.seed,
            "timeout_s": 10.0 + 2 * max(case.seconds for case in cases),
            "cache": str(tree.root / CACHE),
        }
        return child.call(RUN_CASES, arguments, tree.root, limit_s=limit_s, hear=hear)


def run(
    judge: Judge, asked: measure.Asked, seed: int, limits: Limits, progress: tuple[measure.Progress, Progress]
) -> Campaign:
    """Run a campaign on a copy of the packages; the user's files are read only.

    Args:
        seed: of the draw.
        progress: called with every recorded case, and with the number and the outcome of every mutation.
    """
    started = time.monotonic()
    tried = []
    with copied(asked.files) as tree:
        line_map = judge.recorded(tree, progress[0])
        begun = time.monotonic()
        for mutation in drawn({file: tree.read(file) for file in asked.files}, seed):
            if len(tried) == limits.count or time.monotonic() - begun > limits.budget_s:
                break
            tried.append(attempt(mutation, tree, line_map, judge, limits.each_s))
            progress[1](len(tried), tried[-1])
    return Campaign(asked, seed, line_map.troubled, tried, time.monotonic() - started)


def attempt(mutation: Mutation, tree: Tree, line_map: LineMap, judge: Judge, limit_s: float) -> Tried:
    """Run one mutation by the cases that execute it.

    An error that did not come through the changed file, or no end, counts only if the same case passes on the
    unchanged program just now: anything may fail on a machine that is full, and this tool may be wrong.
    """
    source = tree.read(mutation.file)
    diff = mutation.diff(source)
    executing = line_map.executing(mutation.file, mutation.runs)
    if why := proof(mutation, source):
        return Tried(mutation, diff, EQUIVALENT, reason=why, cases=len(executing))
    if not executing:
        return Tried(mutation, diff, UNREACHED)
    cases = judge.ordered(executing, mutation.file)
    heard = _Heard(cases)
    started = time.monotonic()
    with tree.changed(mutation.file, mutation.applied(source)):
        ended = judge.run(tree, cases, limit_s, heard)
    became = heard.outcome(ended, mutation.file)
    if not became.certain:
        again = [case for case in cases if case.case == became.by] or cases[:1]
        became = became.against(_failure(judge, tree, again, limit_s))
    seconds = time.monotonic() - started
    return Tried(mutation, diff, became.verdict, became.by, became.reason, heard.ran, len(cases), seconds, became.how)


def in_turn(cases: list[Executed], file: str) -> list[Executed]:
    """Order cases so that the next is always the one with the most that none before it had, for its seconds.

    That is each word of its id (model, mesh, factors, scheme, dtype, what it is about) and how it goes through the
    changed file, and each pair of these, which counts less. A mutation that one case passes will pass the next of its
    kind as well; another kind may kill it.
    """
    has = {case.case: {*case.case.split("-"), str(case.lines.get(file))} for case in cases}
    pairs = {name: {*combinations(sorted(words), 2)} for name, words in has.items()}
    seen = set[str]()
    together = set[tuple[str, ...]]()
    turns = list[Executed]()
    waiting = list(cases)

    def worth(case: Executed) -> float:
        new = len(has[case.case] - seen) + PAIR * len(pairs[case.case] - together)
        return new / (case.seconds + PROCESS_S)

    while waiting:
        best = max(waiting, key=worth)
        waiting.remove(best)
        seen |= has[best.case]
        together |= pairs[best.case]
        turns.append(best)
    return turns


def _failure(judge: Judge, tree: Tree, cases: list[Executed], limit_s: float) -> str:
    """Say why a case fails on the tree as it is; empty if it passes."""
    messages: list[dict[str, Any]] = []
    ended = judge.run(tree, cases, limit_s, messages.append)
    return ended.why or next((one["reason"] for one in messages if one["verdict"] != "passed"), "")


@dataclass(frozen=True)
class Outcome:
    """What became of a mutation; one that is not ``certain`` is to be held against the unchanged program."""

    verdict: str
    by: str = ""
    reason: str = ""
    how: str = ""
    certain: bool = True

    def against(self, unchanged: str) -> Outcome:
        """Return what is left of it where the unchanged program fails for the given reason, if there is one."""
        if not unchanged:
            return replace(self, certain=True)
        return Outcome(UNTOLD, self.by, f"{self.reason}; without the change: {unchanged}")


class _Heard:
    """What a child tells of its cases, and what follows from it."""

    def __init__(self, cases: list[Executed]) -> None:
        self._cases = cases
        self._verdicts = list[dict[str, Any]]()
        self._last = time.monotonic()

    def __call__(self, message: dict[str, Any]) -> None:
        self._verdicts.append(message)
        self._last = time.monotonic()

    @property
    def ran(self) -> int:
        return sum(message["verdict"] != "skipped" for message in self._verdicts)

    def outcome(self, ended: child.Ended, file: str) -> Outcome:
        """Return what follows for a mutation of ``file``."""
        last = self._verdicts[-1] if self._verdicts else {"verdict": ""}
        if last["verdict"] == "failed":
            error = last["error"]
            return Outcome(KILLED, last["case"], last["reason"], ERROR if error else BOUND, not error or file in error)
        if not ended.out_of_time:  # the changed packages may not even be importable
            return Outcome(KILLED, "", ended.why, ERROR, file in ended.files) if ended.why else Outcome(SURVIVED)
        case = self._cases[min(len(self._verdicts), len(self._cases) - 1)]
        waited = time.monotonic() - self._last
        if waited > START_S + SLOWER * case.seconds:
            why = f"no end in {waited:.0f} s, where the unchanged program takes {case.seconds:.1f} s"
            return Outcome(KILLED, case.case, why, HUNG, certain=False)
        return Outcome(SURVIVED, reason=ended.why)
