"""Transfers out of the sender's memory: same bits and record as over gloo, and a peer that is gone is named."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch

from refsim.base.errors import CommError, DivergedError, RankFailure, UserError
from refsim.runtime.launch import end_ranks
from refsim.runtime.ranks.pool import Pool
from refsim.runtime.transports import shared_transport
from refsim.runtime.transports.shared_transport import Door, SharedTransport
from tests.refsim.helpers import assert_one_sentence, attention_inputs, run
from tests.refsim.parallel.schemes import attend

BOUND_S = 0.3


@pytest.fixture(params=[True, False], ids=["eager", "answered"])
def two(request):
    """Ranks 0 and 1, both in this process; small sends end at once, or when their peer has answered."""
    pipes = [os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) for _ in range(2)]
    ranks = [SharedTransport(rank, [[os.getpid(), end] for _, end in pipes], pipes[rank][0]) for rank in range(2)]
    for rank in ranks:
        rank.timeout_s, rank.eager = 10.0, request.param
    yield ranks
    for rank in ranks:
        rank._hang_up()
        for fd in (*rank._pipes.values(), pipes[rank.rank][1]):
            os.close(fd)


def together(*calls) -> None:
    """Run every call in a thread of its own until all are done."""
    with ThreadPoolExecutor() as threads:
        for running in [threads.submit(call) for call in calls]:
            running.result()


@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_ranks_hand_on_tensors_of_every_dtype_and_size(transport):
    """Empty, of one number, of more than a MiB by an odd number of bytes; whoever receives knows what was sent."""
    sizes = [0, 1, 2**20 + 3]
    dtypes = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool", "complex64"]
    result = run("handed_on", "bh-qb-1x4", "sp4", {"dtypes": dtypes, "sizes": sizes}, transport=transport)
    assert [value["wrong"] for value in result.values] == [[]] * 4
    assert result.values[0]["count"] == len(sizes) * len(dtypes)
    assert result.transport == transport


@pytest.mark.parametrize("scheme", ["t3k_1x8-ring8", "t3k_1x8-ulysses8", "t3k-usp_ring2@0_ulysses4@1"])
def test_a_run_has_the_bits_and_the_record_of_gloo(scheme):
    tensors = attention_inputs(heads=8, n=64, prompt=5)
    shared, gloo = (attend(tensors, scheme, transport=how, trace=True, delay=(3, 0.001)) for how in ("shared", "gloo"))
    for name, tensor in gloo.tensors.items():
        assert torch.equal(shared.tensors[name], tensor)
    events = [
        [{k: v for k, v in event.items() if k not in ("start", "end", "memory")} for event in one.trace]
        for one in (shared, gloo)
    ]
    assert events[0] == events[1] != []
    assert (shared.bytes_per_rank, shared.hazards) == (gloo.bytes_per_rank, gloo.hazards)


def test_more_small_messages_than_a_pipe_takes(two):
    count = 5000
    messages = torch.arange(count)
    sends = [two[0].isend(one, 1) for one in messages.split(1)]
    assert two[0]._full == {1}  # the pipe holds fewer
    assert any(send.done for send in sends) == two[0].eager
    answer, send = torch.zeros(1), two[1].isend(torch.ones(1), 0)
    receive = two[0].irecv(answer, 1)
    two[0].progress()  # an answer would find the pipe full
    assert (answer == 1, receive.done) == (True, two[0].eager)
    arrived = torch.empty_like(messages)
    receives = [two[1].irecv(one, 0) for one in arrived.split(1)]
    with ThreadPoolExecutor() as threads:
        asleep = threads.submit(two[0]._sleep, 1, 10.0)
        two[1].progress()  # reads its pipe
        asleep.result(timeout=5.0)
    together(send.wait, receive.wait)
    together(*[lambda these=these: [one.wait() for one in these] for these in (sends, receives)])
    assert torch.equal(arrived, messages)


def test_channels_do_not_wait_for_each_other(two):
    large, small = torch.rand(2**20), torch.rand(3)
    sends = [two[0].isend(large, 1, 0), two[0].isend(small, 1, 1)]
    arrived = torch.empty(3), torch.empty(2**20)
    two[1].irecv(arrived[0], 0, 1).wait()
    receive = two[1].irecv(arrived[1], 0, 0)
    together(receive.wait, lambda: [send.wait() for send in sends])
    assert torch.equal(arrived[0], small)
    assert torch.equal(arrived[1], large)


def test_a_wait_is_bounded_and_takes_no_processor(two):
    two[0].timeout_s = BOUND_S
    sleep, naps = two[0]._sleep, []
    two[0]._sleep = lambda *given: naps.append(given) or sleep(*given)
    transfer, began = two[0].irecv(torch.empty(3), 1), time.monotonic()
    with pytest.raises(CommError, match=r"receive from rank 1 timed out \(bound 0\.3 s\)") as caught:
        transfer.wait()
    assert caught.value.peer == 1
    assert BOUND_S <= time.monotonic() - began < 10 * BOUND_S
    assert len(naps) <= 2
    # who gives up hangs up on everybody
    began = time.monotonic()
    with pytest.raises(CommError, match="receive from rank 0 lost the connection") as caught:
        two[1].irecv(torch.empty(3), 0).wait()
    assert caught.value.peer == 0
    assert time.monotonic() - began < BOUND_S


def test_a_send_is_complete_once_its_peer_has_it_or_it_is_in_the_note(two):
    two[0].timeout_s, most = BOUND_S, shared_transport._MOST_IN_NOTE
    for channel, size in enumerate((0, most, most + 1)):
        send = two[0].isend(torch.zeros(size, dtype=torch.uint8), 1, channel)
        if two[0].eager and size <= most:
            send.wait()
            continue
        with pytest.raises(CommError, match="send to rank 1 timed out"):
            send.wait()
        return  # who gives up has hung up


def test_what_a_note_holds_is_what_was_sent_whatever_happens_to_it_then(two):
    sent, arrived = torch.ones(3), torch.empty(3)
    send = two[0].isend(sent, 1)
    if two[0].eager:
        send.wait()
        sent.fill_(7)
    two[1].irecv(arrived, 0).wait()
    assert torch.equal(arrived, torch.ones(3))


@pytest.mark.parametrize("read", [1 << 16, 1000, 7])
def test_small_and_large_of_a_channel_arrive_in_order(two, read, monkeypatch):
    """However many bytes are read at once, so that notes are cut."""
    monkeypatch.setattr(shared_transport, "_PIPE_BYTES", read)
    sizes = [3, 5000, 0, 4, 6000, 5, 6, 7000]
    sent = [torch.rand(size) for size in sizes]
    arrived = [torch.empty(size) for size in sizes]
    sends = [two[0].isend(x, 1) for x in sent]
    receives = [two[1].irecv(x, 0) for x in arrived]
    together(*[lambda these=these: [one.wait() for one in these] for these in (sends, receives)])
    assert all(torch.equal(a, b) for a, b in zip(sent, arrived, strict=True))
    assert not two[0]._busy and not two[1]._busy and two[0]._cut == two[1]._cut == b""


def test_memory_that_is_gone_is_a_lost_connection(two, monkeypatch):
    two[0].isend(torch.rand(3000), 1)
    monkeypatch.setattr(shared_transport, "_read", mock.Mock(side_effect=OSError))
    with pytest.raises(CommError, match="receive from rank 0 lost the connection"):
        two[1].irecv(torch.empty(3000), 0).wait()


def test_sends_that_wait_for_each_other_are_found_with_seeded_delays():
    """With tensors of this size the program runs; with larger ones it would hang."""
    assert run("sends_first", "n300", "sp2", {"numbers": 3}, transport="shared").value == {"arrived": 1.0}
    for numbers, more in ((3, {"delay": (0, 0.0)}), (3000, {})):
        with pytest.raises(RankFailure, match=r"waits in a circle \(ranks [01] -> [01] -> [01]\)"):
            run("sends_first", "n300", "sp2", {"numbers": numbers}, transport="shared", timeout_s=1.0, **more)


def test_what_was_offered_before_a_rank_gave_up_still_arrives(two):
    sent, arrived = torch.rand(7), torch.empty(7)
    receive, missing = two[0].irecv(arrived, 1), two[0].irecv(torch.empty(7), 1)
    two[1].isend(sent, 0)
    two[1]._hang_up()
    receive.wait()
    assert torch.equal(arrived, sent)
    with pytest.raises(CommError, match="receive from rank 1 lost the connection"):
        missing.wait()


def test_what_was_offered_is_written_before_the_next_op_of_whoever_receives(two):
    sent, arrived = torch.rand(7), torch.zeros(7)
    two[0].irecv(arrived, 1)
    send = two[1].isend(sent, 0)
    assert torch.equal(arrived, torch.zeros(7))
    two[0].progress()
    assert torch.equal(arrived, sent)
    two[1].progress()
    assert send.done


def test_tensors_that_do_not_fit_each_other_are_told(two):
    two[0].isend(torch.rand(3), 1)
    with pytest.raises(DivergedError, match=r"rank 0 sends 12 bytes of float32 .* where rank 1 receives 8 bytes"):
        two[1].irecv(torch.empty(2), 0).wait()


def test_a_killed_rank_is_named_by_who_waits_for_it_and_leaves_nothing(tmp_path):
    before = set(os.listdir("/dev/shm"))
    with pytest.raises(RankFailure, match=r"rank 1 was killed by SIGKILL .*; rank 0 was waiting for it") as caught:
        run("one_is_killed", "n300", "sp2", {"note": str(tmp_path / "note")}, transport="shared")
    assert caught.value.rank == 1
    assert (tmp_path / "note").read_text() == "receive from rank 1 lost the connection (bound 30 s)"
    assert set(os.listdir("/dev/shm")) == before


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError, None])
def test_a_rank_knows_whether_it_reaches_another(error, monkeypatch):
    doors = [Door() for _ in range(2)]
    assert doors[0].leads_to(doors[1].numbers)
    transports = [door.opened(rank, [one.numbers for one in doors], reached=True) for rank, door in enumerate(doors)]
    assert [transport.rank for transport in transports] == [0, 1]
    monkeypatch.setattr(shared_transport, "_read", mock.Mock(side_effect=error))  # None: it reads something else
    assert not doors[0].leads_to(doors[1].numbers)
    for door in doors:
        pid, end = door.numbers[:2]
        assert door.opened(0, [], reached=False) is None
        assert not doors[0].leads_to([pid, end, *door.numbers[2:]])
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(end)


def test_gloo_is_joined_by_the_first_job_that_asks_for_it():
    end_ranks()
    asked = ["shared", "auto", "gloo", "gloo", "shared"]
    answers = [run("gloo_is_joined", "bh-qb-1x4", "sp4", transport=how) for how in asked]
    joined = [{value["joined"] for value in answer.values} for answer in answers]
    assert joined == [{False}, {False}, {True}, {True}, {True}]
    assert {tuple(value["ranks"]) for answer in answers for value in answer.values} == {(0, 1, 2, 3)}
    assert [answer.transport for answer in answers] == ["shared", "shared", "gloo", "gloo", "shared"]


def test_ranks_that_may_not_read_each_others_memory_say_what_would_work(monkeypatch):
    collect = Pool._collect

    def one_does_not(self, *given):
        answers = collect(self, *given)
        if "reached" in answers[1][0]:
            answers[1][0]["reached"] = False
        return answers

    end_ranks()  # those that are ready do not try again
    monkeypatch.setattr(Pool, "_collect", one_does_not)
    try:
        with pytest.raises(UserError, match=r"may not read each other's memory .*; choose transport gloo\.") as caught:
            run("gathered_ranks", "n300", "sp2", transport="shared")
        assert_one_sentence(str(caught.value))
        result = run("gathered_ranks", "n300", "sp2")
        assert (result.transport, result.value) == ("gloo", {"ranks": [0, 1]})
    finally:
        end_ranks()
