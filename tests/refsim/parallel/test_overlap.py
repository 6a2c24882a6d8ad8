"""The trace of ring attention shows two buffers per tensor, and transfers that run while attention is computed."""

import pytest

from tests.refsim.helpers import attention_inputs
from tests.refsim.parallel.schemes import SCHEMES, attend

RING, LINE, SHORT_LINE = "t3k_1x8-ring8", "t3k-sp4tp2-ring_line", "n300-ring2"
DEVICES = {RING: 8, LINE: 8, SHORT_LINE: 2}


def by_rank(scheme: str, **options) -> list[list[dict]]:
    """Record the events of ring attention, rank by rank."""
    tensors = attention_inputs(heads=8, n=256, prompt=5)
    trace = attend(tensors, scheme, trace=True, **options).trace
    events = [e for e in trace if e["collective"].split("/")[0] == "ring_attention"]
    return [[e for e in events if e["rank"] == rank] for rank in range(DEVICES[scheme])]


def transfers(events, *, step=None, op=("send", "recv")):
    return [e for e in events if e["op"] in op and step in (None, e["step"])]


def computes(events, step):
    """(start, end) of everything that is computed at ``step``."""
    found = [e for e in events if e["op"] == "sdpa" and e["step"] == step]
    return min(e["start"] for e in found), max(e["end"] for e in found)


def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def span(event) -> tuple[float, float]:
    return event["start"], event["end"]


def test_ids_of_this_file_are_schemes():
    assert set(DEVICES) <= set(SCHEMES)


@pytest.mark.parametrize("ring_order", ["step", "block"])
def test_a_ring_uses_two_persistent_buffers_per_tensor(ring_order):
    for events in by_rank(RING, ring_order=ring_order, k_chunk_size=16):
        for op in ("send", "recv"):
            ids = {e["buffer"] for e in transfers(events, op=op)}
            assert {name: sum(f".{name}" in buffer for buffer in ids) for name in "kv"} == {"k": 2, "v": 2}
            assert len(ids) == 4
        assert len({e["buffer"] for e in transfers(events)}) == 4


@pytest.mark.parametrize("ring_order", ["step", "block"])
@pytest.mark.parametrize("scheme", [LINE, SHORT_LINE])
def test_a_line_uses_at_most_two_buffers_per_tensor_and_direction(scheme, ring_order):
    for events in by_rank(scheme, ring_order=ring_order, k_chunk_size=16):
        received: dict[tuple[int, str], set[str]] = {}
        for e in transfers(events, op="recv"):
            received.setdefault((e["peer"], ".k" if ".k" in e["buffer"] else ".v"), set()).add(e["buffer"])
        assert all(len(ids) <= 2 for ids in received.values())
        every = {e["buffer"] for e in transfers(events)}
        for name in (".k", ".v"):
            assert len({buffer for buffer in every if name in buffer}) <= 4
        assert all(".k" in buffer or ".v" in buffer for buffer in every)


@pytest.mark.parametrize("scheme", [RING, LINE, SHORT_LINE])
def test_the_next_step_travels_while_this_one_is_computed(scheme):
    for events in by_rank(scheme):
        steps = {e["step"] for e in transfers(events)}
        assert steps
        for step in steps:
            for transfer in transfers(events, step=step):
                assert overlap(span(transfer), computes(events, step - 1)), transfer


def test_every_step_of_a_ring_moves_keys_and_values_both_ways():
    for rank, events in enumerate(by_rank(RING)):
        for step in range(1, 8):
            moved = sorted((e["op"], e["peer"], e["buffer"].split(".")[1][0]) for e in transfers(events, step=step))
            left, right = (rank - 1) % 8, (rank + 1) % 8
            assert moved == [("recv", left, "k"), ("recv", left, "v"), ("send", right, "k"), ("send", right, "v")]
        assert {e["step"] for e in transfers(events)} == set(range(1, 8))


@pytest.mark.parametrize("scheme", [RING, LINE])
def test_blocks_travel_while_earlier_blocks_are_computed(scheme):
    """A block of the next step is on its way before the last block of this step is done."""
    for events in by_rank(scheme, ring_order="block", k_chunk_size=16):
        first_step = transfers(events, step=1)
        assert len(first_step) > 4
        for step in {e["step"] for e in transfers(events)}:
            start = min(e["start"] for e in transfers(events, step=step))
            assert start < computes(events, step - 1)[1]


@pytest.mark.parametrize("scheme", [RING, LINE, SHORT_LINE])
def test_gather_moves_everything_before_it_computes(scheme):
    for events in by_rank(scheme, ring_order="gather"):
        attention = [e for e in events if e["op"] == "sdpa"]
        assert attention
        assert transfers(events)
        for e in attention:
            assert not any(overlap(span(e), span(transfer)) for transfer in transfers(events))


@pytest.mark.parametrize("scheme", [RING, LINE, SHORT_LINE])
def test_no_buffer_is_filled_while_it_is_sent_or_read(scheme):
    """What the hazard check promises, seen from the time stamps alone."""
    for events in by_rank(scheme, delay=(1, 0.01)):
        for filled in transfers(events, op="recv"):
            for other in events:
                if other is not filled and other["buffer"] == filled["buffer"]:
                    assert not overlap(span(filled), span(other)), (filled, other)
