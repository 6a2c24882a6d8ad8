"""Draw mutations of files, run each by the cases that execute it, and note which survive."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.lines import child, measure
from parity.lines.measure import Executed, LineMap
from parity.lines.tree import Tree, copied
from parity.mutation.equivalent import proof
from parity.mutation.sites import Mutation, drawn

KILLED, SURVIVED, UNREACHED, EQUIVALENT = "killed", "survived", "unreached", "equivalent"
"""A case fails; every case passes, or those that there was time for; no case executes it; proved to change nothing."""

START_S, SLOWER = 20.0, 10.0
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


@dataclass(frozen=True)
class Tried:
    """A mutation and what became of it.

    Attributes:
        mutation: the change.
        diff: the changed lines.
        verdict: ``killed``, ``survived``, ``unreached`` or ``equivalent``.
        by: the case that failed, if one did.
        reason: why it failed; of an equivalent mutation the proof; of a survivor whether time ran out.
        ran, cases: how many cases ran and how many execute the line.
        seconds: wall time.
    """

    mutation: Mutation
    diff: str
    verdict: str
    by: str = ""
    reason: str = ""
    ran: int = 0
    cases: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Campaign:
    """What was asked for, the cases that failed without any change, and the mutations tried."""

    asked: measure.Asked
    seed: int
    troubled: list[Executed]
    tried: list[Tried]
    seconds: float


Progress = Callable[[int, Tried], None]


def run(
    asked: measure.Asked, seed: int, limits: Limits, kept: Path | None, progress: tuple[measure.Progress, Progress]
) -> Campaign:
    """Run a campaign on a copy of the packages; the user's files are read only.

    Args:
        seed: of the draw.
        kept: file of the map from lines to cases, see :func:`parity.lines.measure.measured`.
        progress: called with every recorded case, and with the number and the outcome of every mutation.
    """
    started, tried = time.monotonic(), []
    with copied(asked.files) as tree:
        found = measure.measured(asked, tree, kept, progress[0])
        child.preload(found.imported)
        begun = time.monotonic()
        for mutation in drawn({file: tree.read(file) for file in asked.files}, seed):
            if len(tried) == limits.count or time.monotonic() - begun > limits.budget_s:
                break
            tried.append(attempt(mutation, tree, found, asked, limits.each_s))
            progress[1](len(tried), tried[-1])
    return Campaign(asked, seed, found.troubled, tried, time.monotonic() - started)


def attempt(mutation: Mutation, tree: Tree, found: LineMap, asked: measure.Asked, limit_s: float) -> Tried:
    """Run one mutation by the cases that execute it, the quickest first."""
    source = tree.read(mutation.file)
    diff, cases = mutation.diff(source), found.executing(mutation.file, mutation.runs)
    if why := proof(mutation):
        return Tried(mutation, diff, EQUIVALENT, reason=why, cases=len(cases))
    if not cases:
        return Tried(mutation, diff, UNREACHED)
    heard = _Heard(cases)
    arguments = {
        "ids": [case.case for case in cases],
        "backend": asked.backend,
        "seed": asked.seed,
        "timeout_s": 10.0 + 2 * max(case.seconds for case in cases),
    }
    started = time.monotonic()
    with tree.changed(mutation.file, mutation.applied(source)):
        ended = child.call("parity.mutation.judge:run_cases", arguments, tree.root, limit_s=limit_s, hear=heard)
    verdict, by, reason = heard.outcome(ended, out_of_time=ended == child.out_of_time(limit_s))
    return Tried(mutation, diff, verdict, by, reason, heard.ran, len(cases), time.monotonic() - started)


class _Heard:
    """What a child tells of its cases, and what follows from it."""

    def __init__(self, cases: list[Executed]) -> None:
        self._cases, self._verdicts, self._last = cases, list[dict[str, Any]](), time.monotonic()

    def __call__(self, message: dict[str, Any]) -> None:
        self._verdicts.append(message)
        self._last = time.monotonic()

    @property
    def ran(self) -> int:
        return sum(message["verdict"] != "skipped" for message in self._verdicts)

    def outcome(self, ended: str, *, out_of_time: bool) -> tuple[str, str, str]:
        """(verdict, the case that failed, why), ``ended`` as :func:`parity.lines.child.call` returns it."""
        last = self._verdicts[-1] if self._verdicts else {"verdict": ""}
        if last["verdict"] == "failed":
            return KILLED, last["case"], last["reason"]
        if not out_of_time:  # what it ended with is an error of the changed packages, which may not even be importable
            return (KILLED, "", ended) if ended else (SURVIVED, "", "")
        case = self._cases[len(self._verdicts)]
        waited = time.monotonic() - self._last
        if waited > START_S + SLOWER * case.seconds:
            return (
                KILLED,
                case.case,
                f"no end in {waited:.0f} s, where the unchanged program takes {case.seconds:.1f} s",
            )
        return SURVIVED, "", ended
