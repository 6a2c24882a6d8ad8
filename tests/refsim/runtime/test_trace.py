"""The trace counts every transfer, keeps events only when asked, and keeps all ranks on one clock."""

import json

import pytest
import torch

from refsim.base.mesh import Topology
from refsim.runtime.group import Group
from refsim.runtime.watch import measured_trace
from refsim.runtime.watch.activity import Activity, Kind
from refsim.runtime.watch.trace import Trace, write_jsonl
from tests.refsim.helpers import run

SP = Group("sp", 0, (2, 3), 1, Topology.RING, 1)
TP = Group("tp", 1, (2, 3), 0, Topology.LINEAR, 1)


def record(trace: Trace, what: str, *, collective: str = "shift", group: Group | None = SP, elements: int = 2, step=0):
    activity = Activity(Kind.POSTING, what, collective, step, peer=3)
    event = trace.begin(activity, torch.zeros(elements), group=group)
    trace.end(event)
    return event


@pytest.mark.parametrize("keep", [False, True], ids=["counting", "keeping"])
def test_sends_are_counted_and_receives_are_not(keep):
    trace = Trace(rank=3, keep=keep)
    for op in ("send", "send", "recv"):
        record(trace, op)
    record(trace, "sdpa", group=None)
    record(trace, "send", collective="all_reduce/all_gather", group=TP, elements=5)
    assert trace.bytes_by_collective() == {"shift@sp": 16, "all_reduce/all_gather@tp": 20}
    assert len(trace.as_json()) == (5 if keep else 0)


def test_jsonl_is_ordered_by_start(tmp_path):
    events = [record(Trace(rank, keep=True), "send", step=rank) for rank in (2, 0, 1)]
    lines = (tmp_path / "trace.jsonl", [vars(event) for event in reversed(events)])
    write_jsonl(lines[1], lines[0])
    written = [json.loads(line) for line in lines[0].read_text().splitlines()]
    assert [event["step"] for event in written] == [2, 0, 1]
    assert written == [vars(event) for event in events]


def test_trace_of_all_ranks_is_kept_only_when_asked():
    arguments = {"collective": "shift", "group": "sp", "dtype": "float32", "shape": [6]}
    assert run("one_collective", "t3k-1x8", "sp8", arguments).trace == []
    trace = run("one_collective", "t3k-1x8", "sp8", arguments, trace=True).trace
    assert sorted((e["rank"], e["op"], e["peer"]) for e in trace) == sorted(
        [(r, "send", (r + 1) % 8) for r in range(8)] + [(r, "recv", (r - 1) % 8) for r in range(8)]
    )
    for event in trace:
        assert (event["collective"], event["group"], event["axis"]) == ("shift", "sp", 1)
        assert (event["topology"], event["dtype"], event["shapes"], event["bytes"]) == ("Ring", "float32", [[6]], 24)


def test_a_transfer_cannot_arrive_before_it_is_sent():
    """Start and end of both sides are on one clock: every receive ends after its send was posted."""
    arguments = {"collective": "shift", "group": "sp", "dtype": "float32", "shape": [6]}
    trace = run("one_collective", "t3k-1x8", "sp8", arguments, trace=True, delay=(1, 0.02)).trace
    sends = {(e["rank"], e["peer"]): e for e in trace if e["op"] == "send"}
    for recv in (e for e in trace if e["op"] == "recv"):
        assert recv["start"] <= recv["end"]
        assert sends[recv["peer"], recv["rank"]]["start"] <= recv["end"]


def test_a_receive_belongs_to_the_send_of_its_channel():
    """Sends of two channels that are posted in the other order than their receives."""

    def event(rank, op, peer, channel, step):
        return {"rank": rank, "op": op, "peer": peer, "channel": channel, "step": step}

    sends = [event(0, "send", 1, channel, step) for channel, step in ((1, 7), (0, 8), (1, 9))]
    recvs = [event(1, "recv", 0, channel, step) for channel, step in ((0, 8), (1, 7), (1, 9))]
    found = list(measured_trace.transfers([*sends, *recvs, event(1, "sdpa", None, None, 0)]))
    assert [(a["step"], b["step"]) for a, b in found] == [(8, 8), (7, 7), (9, 9)]
