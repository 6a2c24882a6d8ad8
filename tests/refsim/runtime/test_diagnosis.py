"""Who is named, out of what ranks said and were doing last; every finding here was met in a real run."""

from __future__ import annotations

import signal

import pytest

from refsim.base.errors import RankFailure, UserError
from refsim.runtime.ranks.diagnosis import Findings, diagnose, is_decided
from refsim.runtime.watch.activity import Activity, Kind
from tests.refsim.helpers import assert_one_sentence


def waiting(peer: int, step: int = 3) -> Activity:
    return Activity(Kind.WAITING, "recv", "ring_attention", step, peer)


def events(*last: Activity) -> dict[int, list[tuple[float, Activity]]]:
    return {rank: [(1.0, Activity(Kind.IDLE)), (0.5, activity)] for rank, activity in enumerate(last)}


def gave_up(peer: int, *, timed_out: bool = True) -> dict:
    said = f"receive from rank {peer} {'timed out' if timed_out else 'lost the connection'}"
    return {"kind": "comm", "message": said, "peer": peer, "timed_out": timed_out, "traceback": "T"}


RAISED = {"kind": "error", "message": "ValueError: planted", "peer": None, "traceback": "T"}
BUSY = Activity(Kind.COMPUTING, "sdpa", "ring_attention", 2)


@pytest.mark.parametrize(
    ("found", "rank", "says"),
    [
        (Findings(events(waiting(1), BUSY, BUSY), died={1}), 1, "rank 1 was killed by SIGKILL while it was computing"),
        (
            Findings(events(waiting(1), BUSY, BUSY), died={1}),
            1,
            "; rank 0 was waiting for it in recv of step 3 of ring",
        ),
        (Findings(events(waiting(1), BUSY, BUSY), failures={0: gave_up(1), 1: RAISED}), 1, ": ValueError: planted."),
        (
            Findings(events(waiting(1), waiting(2), BUSY), failures={0: gave_up(1), 1: gave_up(2)}),
            2,
            "made no progress",
        ),
        (Findings(events(waiting(1), waiting(2), BUSY), failures={0: gave_up(1)}), 2, "made no progress"),
        (
            Findings(events(waiting(1), waiting(0), BUSY), failures={0: gave_up(1)}),
            1,
            "rank 1 made no progress while it was",
        ),
        (
            Findings(events(waiting(1), waiting(0)), failures={0: gave_up(1), 1: gave_up(0)}),
            0,
            "circle (ranks 0 -> 1 -> 0)",
        ),
        (
            Findings(events(waiting(1), waiting(0)), failures={0: gave_up(1, timed_out=False), 1: gave_up(0)}),
            1,
            ": receive from rank 0 timed out.",
        ),
        (Findings(events(BUSY, BUSY), hung=1), 1, "rank 1 made no progress"),
        (Findings(events(BUSY, BUSY), too_big=(1, 10**10, "of memory, too much,")), 1, "rank 1 held 10.0 GB of memory"),
    ],
    ids=[
        "death",
        "waiter",
        "raised",
        "chain",
        "silent_chain",
        "hung_says_it_waits",
        "circle",
        "hung_up_on",
        "hung",
        "memory",
    ],
)
def test_the_first_to_fail_is_named(found, rank, says):
    error = diagnose(found, [-signal.SIGKILL] * len(found.events))
    assert isinstance(error, RankFailure)
    assert error.rank == rank
    assert says in str(error)
    assert_one_sentence(str(error))
    assert error.last_events == {r: [(at, str(done)) for at, done in said] for r, said in found.events.items()}
    assert all(f"rank {r} " in error.events_table() for r in found.events)


def test_a_users_mistake_stays_one():
    mistake = {"kind": "user", "message": "pad it to 8.", "peer": None, "traceback": ""}
    assert isinstance(diagnose(Findings(events(BUSY, BUSY), failures={0: RAISED, 1: mistake}), [0, 0]), UserError)


def test_silent_ranks_in_a_circle_are_listened_to_longer():
    circle = events(waiting(1), waiting(2), waiting(1))
    assert not is_decided(Findings(circle, failures={0: gave_up(1)}))
    assert is_decided(Findings(circle, failures={0: gave_up(1), 1: gave_up(2)}))
    assert is_decided(Findings(circle, failures={0: gave_up(1), 1: gave_up(2), 2: gave_up(1)}))
    assert is_decided(Findings(circle, failures={0: RAISED}))
