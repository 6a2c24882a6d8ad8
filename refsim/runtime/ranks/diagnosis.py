"""Which rank failed first: one exception out of every rank's report, how it ended, and what it was doing last.

A rank that fails takes its neighbours along: they lose the connection, or wait for it until their time is up. Their
reports only point at the culprit, through the peer each of them was waiting for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from refsim.base.errors import RankFailure, RefsimError, UserError
from refsim.base.processes import how_it_ended
from refsim.runtime.watch.activity import Activity, Kind
from refsim.runtime.watch.calls import Call, Divergence, first_difference
from refsim.runtime.watch.status import Events, StatusBoard


@dataclass
class Findings:
    """What the launcher knows about a run that failed.

    Attributes:
        events: the last events of every rank.
        failures: failure messages of ranks, in the order they arrived.
        died: ranks that ended by themselves.
        hung: a silent rank, when nobody has shown life within the bound.
        too_big: (rank, bytes, sentence part) of a rank that was about to use up the memory.
        diverged: the first collective call at which ranks disagree.
    """

    events: Events = field(default_factory=dict)
    failures: dict[int, dict[str, Any]] = field(default_factory=dict)
    died: set[int] = field(default_factory=set)
    hung: int | None = None
    too_big: tuple[int, int, str] | None = None
    diverged: Divergence | None = None

    @property
    def failed(self) -> bool:
        """Whether anything is known that ends a run."""
        ends = (self.hung, self.too_big, self.diverged)
        return bool(self.failures or self.died) or any(one is not None for one in ends)


def divergence(board: StatusBoard, ranks: Iterable[int]) -> Divergence | None:
    """Return the first collective call at which these ranks disagree by what they wrote on the board."""
    calls: dict[int, list[Call]] = {}
    doing: dict[int, Activity | None] = {}
    runs = {rank: board.run(rank) for rank in ranks}
    for rank in (rank for rank, run in runs.items() if run == max(runs.values())):
        doing[rank] = board.get(rank)[1]  # before its calls: who has ended when asked makes no further one
        calls[rank] = board.calls(rank)
    ended = {rank for rank, now in doing.items() if now is not None and now.kind in (Kind.HANDING_IN, Kind.IDLE)}
    waits_for = {rank: now.peer for rank, now in doing.items() if now is not None and now.kind is Kind.WAITING}
    return first_difference(calls, ended, waits_for)


def diagnose(findings: Findings, exit_codes: Sequence[int | None]) -> RefsimError:
    """Return the error to raise: a user's mistake, memory, a death, an exception, or the rank all others wait for.

    ``exit_codes``: of all ranks, negative for a signal, None if not known; only those of ``findings.died`` are read.
    """
    for failure in findings.failures.values():
        if failure["kind"] == "user":
            return UserError(failure["message"])
    if findings.too_big is not None:
        rank, used, why = findings.too_big
        return _failure(findings, rank, f"held {used / 1e9:.1f} GB {why}")
    if findings.died:
        rank = min(findings.died)
        code = exit_codes[rank]
        return _failure(findings, rank, "died" if code is None else how_it_ended(code))
    if findings.diverged is not None:
        return _diverged(findings, findings.diverged)
    for rank, failure in findings.failures.items():
        if failure["kind"] in ("error", "diverged"):
            return _failure(findings, rank, "failed", reason=failure["message"], traceback=failure["traceback"])
    rank, circle = (findings.hung, []) if findings.hung is not None else _culprit(findings)
    if circle:
        # Of the circle, those that lost a connection did so because the first to give up hung up on them.
        rank = next((one for one in circle if findings.failures.get(one, {}).get("timed_out")), rank)
        failure = findings.failures.get(rank, {"message": "", "traceback": ""})
        how = f"waits in a circle (ranks {' -> '.join(map(str, circle))}) and made no progress"
        return _failure(findings, rank, how, reason=failure["message"], traceback=failure["traceback"])
    return _failure(findings, rank, "made no progress")


def is_decided(findings: Findings) -> bool:
    """Whether listening longer would tell no more.

    It would while silent ranks say that they wait for each other: those that really do will give up in time, and the
    one that hangs will not.
    """
    if findings.died or any(failure["kind"] != "comm" for failure in findings.failures.values()):
        return True
    _, circle = _culprit(findings)
    return all(rank in findings.failures for rank in circle)


def _culprit(findings: Findings) -> tuple[int, list[int]]:
    """Follow whom each rank waits for, from the first that gave up; return (where that ends, the circle if it is one).

    Who gives up hangs up on everybody. So a silent rank that says it waits for one that gave up does not: it would
    have noticed, and is the one that hangs.
    """
    chain = [next(iter(findings.failures))]
    while True:
        rank = chain[-1]
        gave_up = rank in findings.failures
        peer = findings.failures[rank]["peer"] if gave_up else _peer(findings, rank)
        if peer is None or (not gave_up and peer in findings.failures):
            return rank, []
        if peer in chain:
            return peer, [*chain[chain.index(peer) :], peer]
        chain.append(peer)


def _failure(findings: Findings, rank: int, how: str, *, reason: str = "", traceback: str = "") -> RankFailure:
    doing = _last(findings, rank)
    sentence = f"rank {rank} {how} while it was {doing.clause if doing else 'silent'}"
    waiting = [other for other in findings.events if other != rank and _peer(findings, other) == rank]
    if waiting:
        sentence += f"; rank {waiting[0]} was waiting for it in {_last(findings, waiting[0]).transfer}"
    if reason:
        sentence += f": {reason.rstrip('.')}"
    return RankFailure(f"{sentence}.", rank=rank, traceback=traceback, last_events=_texts(findings))


def _diverged(findings: Findings, difference: Divergence) -> RankFailure:
    """Return the error that names the rank which makes another call than its group."""
    sentence = f"{difference.sentence}; all members of a group make the same calls in the same order."
    return RankFailure(sentence, rank=difference.rank, last_events=_texts(findings))


def _texts(findings: Findings) -> dict[int, list[tuple[float, str]]]:
    return {rank: [(age, str(activity)) for age, activity in events] for rank, events in findings.events.items()}


def _peer(findings: Findings, rank: int) -> int | None:
    """Return the rank that ``rank`` is waiting for, by its own account."""
    doing = _last(findings, rank)
    return doing.peer if doing is not None and doing.kind is Kind.WAITING else None


def _last(findings: Findings, rank: int) -> Activity | None:
    events = findings.events.get(rank)
    return events[-1][1] if events else None
