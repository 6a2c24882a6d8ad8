"""Trace checks on hand-made traces: 0 where all is well, counts where it is not."""

from dataclasses import replace

import pytest

from parity.cases import Layout
from parity.measure import traces

RING = Layout("bh-qb-1x4", "sp4")


def event(rank, op, start, end, **more):
    base = {"rank": rank, "op": op, "start": start, "end": end, "step": 0, "collective": "ring_attention"}
    base |= {"group": "", "axis": None, "topology": None, "peer": None, "bytes": 0, "buffer": "-"}
    base |= {"shapes": [[1, 1, 1, 1]] * 3}
    return base | more


def overlapped(shift=0.0):
    """Two steps on rank 0; the transfer of step 1 is under way while step 0 computes, unless ``shift`` parts them."""
    ring = {"group": "ring", "axis": 1, "topology": "Ring"}
    return [
        event(0, "recv", 0.0 + shift, 3.0 + shift, step=1, peer=3, **ring),
        event(0, "sdpa", 1.0, 2.0, step=0),
        event(0, "sdpa", 4.0 + shift, 5.0 + shift, step=1),
    ]


def test_overlap_is_seen_and_so_is_its_loss():
    assert traces.without_overlap(overlapped()) == []
    assert [e["step"] for e in traces.without_overlap(overlapped(shift=10.0))] == [0]
    assert traces.check(overlapped(), RING)["trace_without_overlap"] == 0


@pytest.mark.parametrize(
    ("change", "metric"),
    [({"axis": 0}, "trace_wrong_axis"), ({"topology": "Linear"}, "trace_wrong_topology")],
)
def test_an_axis_or_a_topology_that_the_layout_does_not_have(change, metric):
    trace = overlapped()
    assert traces.check(trace, RING)[metric] == 0
    trace[0] |= change
    assert traces.check(trace, RING)[metric] == 1


@pytest.mark.parametrize(("peer", "wrong"), [(1, 0), (3, 1)])
def test_a_shard_walks_a_ring_to_the_right(peer, wrong):
    ring = {"group": "ring", "axis": 1, "topology": "Ring"}
    sent = event(0, "send", 0.0, 3.0, step=1, peer=peer, **ring)
    assert traces.check([*overlapped(), sent], RING)["trace_wrong_direction"] == wrong


@pytest.mark.parametrize(
    ("sides", "wrong"),
    [("left left right", 0), ("left right left", 1), ("right left", 1), ("left right", 0)],
)
def test_of_two_shards_on_a_line_the_one_from_the_left_is_attended_first(sides, wrong):
    trace = [
        event(0, "sdpa", at, at + 0.5, step=min(at, 1), buffer=f"ring.k.from_{side}[0]")
        for at, side in enumerate(sides.split())
    ]
    assert traces.check(trace, RING)["trace_wrong_direction"] == wrong


@pytest.mark.parametrize(("rows", "wrong"), [(20, 0), (48, 1)])
def test_a_block_has_the_rows_of_keys_that_were_asked_for(rows, wrong):
    attended = event(0, "sdpa", 1.0, 2.0, shapes=[[1, 2, 48, 8], [1, 2, rows, 8], [1, 2, rows, 8]])
    assert traces.check([attended], replace(RING, chunks=(48, 20)))["trace_wrong_chunk"] == wrong


def test_compute_after_word_from_the_other_branch():
    hear = event(1, "recv", 2.0, 2.5, group="cfg", axis=1, peer=0, collective="")
    before, after = event(1, "linear", 1.0, 1.5), event(1, "linear", 3.0, 3.5)
    assert traces.cfg_in_turn([before, hear]) == []
    assert traces.cfg_in_turn([hear, after]) == [after]


def test_traffic_compares_all_but_times():
    later = [e | {"start": e["start"] + 9, "end": e["end"] + 9} for e in overlapped()]
    assert traces.traffic_changed(later, overlapped()) == 0
    assert traces.traffic_changed(later[:-1], overlapped()) == 1
    later[0] |= {"bytes": 4}
    assert traces.traffic_changed(later, overlapped()) == 2
