"""Device buffers report every use that could have met another one; semaphores cannot hang."""

import itertools

import pytest
import torch

from refsim.errors import HazardError, RankFailure
from refsim.runtime.buffers import BufferPool, DeviceBuffer, Semaphore
from tests.refsim.helpers import run


@pytest.fixture
def buffer():
    return DeviceBuffer("ring.k[0]", torch.zeros(4))


@pytest.mark.parametrize(
    ("first", "second", "second_would", "first_still"),
    [
        ("read", "write", "would write", "still reads"),
        ("write", "read", "would read", "still writes"),
        ("write", "write", "would write", "still writes"),
    ],
    ids=["write_while_read", "read_while_written", "write_while_written"],
)
def test_hazard_names_both_parties(buffer, first, second, second_would, first_still):
    getattr(buffer, f"begin_{first}")("recv of step 1")
    with pytest.raises(HazardError) as caught:
        getattr(buffer, f"begin_{second}")("sdpa of step 2")
    message = str(caught.value)
    assert message.index("sdpa of step 2 " + second_would) < message.index("ring.k[0]")
    assert message.index("ring.k[0]") < message.index("recv of step 1 " + first_still)


def test_many_may_read_and_the_last_one_frees(buffer):
    buffer.begin_read("send")
    buffer.begin_read("sdpa")
    buffer.end_read("send")
    with pytest.raises(HazardError, match="sdpa still reads"):
        buffer.begin_write("recv")
    buffer.end_read("sdpa")
    buffer.begin_write("recv")


@pytest.mark.parametrize(("one", "other"), [*itertools.product(("reading", "writing"), repeat=2)])
def test_context_managers_own_the_buffer_and_give_it_back(buffer, one, other):
    with getattr(buffer, one)("first") as tensor:
        assert tensor is buffer.tensor
        if (one, other) != ("reading", "reading"):
            with pytest.raises(HazardError, match="first"), getattr(buffer, other)("second"):
                pass
    with pytest.raises(KeyError), getattr(buffer, one)("first"):
        raise KeyError("planted")
    with getattr(buffer, other)("second"):
        pass


def test_a_refused_party_owns_nothing(buffer):
    buffer.begin_read("sdpa")
    with pytest.raises(HazardError):
        buffer.begin_write("recv")
    buffer.end_read("sdpa")
    buffer.begin_read("send")


def test_parts_are_owned_on_their_own(buffer):
    buffer.part(0).begin_write("recv of block 0")
    buffer.part(1).begin_read("sdpa of block 1")
    with pytest.raises(HazardError, match=r"sdpa of block 0 would read buffer ring\.k\[0\] while recv of block 0"):
        buffer.part(0).begin_read("sdpa of block 0")
    assert buffer.part(1).tensor is buffer.tensor
    assert buffer.part(1).id == buffer.id


def test_ping_pong_alternates_between_two_allocations():
    pair = BufferPool().ping_pong("k", (4,), torch.float32)
    assert pair[0] is pair[2] is pair[4]
    assert pair[1] is pair[3]
    assert pair[0].tensor.data_ptr() != pair[1].tensor.data_ptr()
    assert (pair[0].id, pair[1].id) == ("k[0]", "k[1]")


def test_a_key_is_allocated_once():
    pool = BufferPool()
    first = pool.persistent("k", (4, 2), torch.float32)
    assert pool.persistent("k", (4, 2), torch.float32) is first
    assert pool.ping_pong("k", (4,), torch.float32)[1] is pool.ping_pong("k", (4,), torch.float32)[1]
    others = [
        pool.persistent("k", (4, 3), torch.float32),
        pool.persistent("k", (4, 2), torch.bfloat16),
        pool.persistent("v", (4, 2), torch.float32),
    ]
    assert len({id(b) for b in (first, *others)}) == 4
    assert len({b.id for b in (first, *others)}) == 4
    assert [tuple(b.tensor.shape) for b in others] == [(4, 3), (4, 2), (4, 2)]
    assert others[1].tensor.dtype is torch.bfloat16


def test_semaphore_completes_just_as_many_arrivals_as_needed():
    done = []
    semaphore = Semaphore("k step 1")
    for name in "abc":
        semaphore.signal_on(lambda name=name: done.append(name))
    semaphore.wait(0)
    assert done == []
    semaphore.wait(2)
    assert (done, semaphore.value) == (["a", "b"], 2)
    semaphore.wait(1)
    assert done == ["a", "b"]
    semaphore.wait(3)
    assert done == ["a", "b", "c"]


def test_semaphore_that_nobody_will_raise_is_an_error():
    semaphore = Semaphore("k step 1")
    semaphore.signal_on(lambda: None)
    with pytest.raises(HazardError, match=r"semaphore k step 1 stands at 1 and can never reach 2"):
        semaphore.wait(2)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("recv", "send", r"send of step 4 of demo \(to rank 1\) would read buffer k\[0\] while recv of step 4 of demo"),
        ("send", "recv", r"recv of step 4 of demo \(from rank 1\) would write buffer k\[0\] while send of step 4"),
        ("recv", "recv", r"recv of step 4 of demo \(from rank 1\) would write .* still writes it"),
        ("recv", "compute", r"sdpa of step 7 would read buffer k\[0\] while recv of step 4 of demo"),
        ("compute", "recv", r"recv of step 4 of demo \(from rank 1\) would write .* while sdpa of step 7 still reads"),
    ],
)
def test_transfers_of_a_rank_own_their_buffer(first, second, says):
    """The hazard is reported although no value has come out wrong yet."""
    with pytest.raises(RankFailure, match=says) as caught:
        run("hazard", "n300", "sp2", {"first": first, "second": second})
    assert caught.value.rank == 0
