"""Buffers are known by their memory, allocated once and handed out again; semaphores cannot hang."""

import re
from pathlib import Path

import pytest
import torch

from refsim.base.errors import HazardError
from refsim.runtime.buffers import BufferPool, Semaphore


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


def test_a_buffer_is_found_by_any_view_of_its_memory():
    pool = BufferPool()
    k, v = (pool.persistent(name, (4, 2), torch.float32) for name in "kv")
    assert pool.of(k.tensor) is pool.of(k.tensor[1:, 0]) is pool.of(k.tensor.view(-1)) is k
    assert pool.of(v.tensor.mT) is v
    assert pool.of(torch.empty(4, 2)) is None
    assert pool.of(k.tensor.clone()) is None


def test_a_transient_buffer_is_an_ordinary_tensor_again_afterwards():
    released = []
    pool = BufferPool(released.append)
    one, two = torch.empty(4), torch.empty(4)
    with pytest.raises(KeyError), pool.transient("stage", one, two):
        assert [pool.of(one[:2]).id, pool.of(two).id] == ["stage[0]", "stage[1]"]
        assert released == []
        raise KeyError("planted")
    assert [buffer.id for buffer in released] == ["stage[0]", "stage[1]"]
    assert pool.of(one) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_released_memory_goes_to_the_next_buffer_of_its_shape_under_a_handle_of_its_own(dtype):
    released = []
    pool = BufferPool(released.append)
    k = pool.persistent("k", (2, 4), dtype)
    pool.release(k)
    assert released == [k]
    assert pool.persistent("v", (2, 4), torch.float64).tensor.data_ptr() != k.tensor.data_ptr()
    v = pool.persistent("v", (2, 4), dtype)
    assert v.tensor.data_ptr() == k.tensor.data_ptr()
    v.tensor.fill_(3)
    assert k.tensor.tolist() == v.tensor.tolist() == [[3] * 4] * 2
    assert (v.tensor.shape, v.tensor.dtype) == (k.tensor.shape, dtype)
    assert (pool.of(k.tensor[1:]), pool.of(v.tensor[1:])) == (k, v)
    assert v.taken_from is k
    assert pool.persistent("k", (2, 4), dtype).tensor.data_ptr() != k.tensor.data_ptr()


def test_released_meta_buffers_have_handles_of_their_own():
    pool = BufferPool()
    with torch.device("meta"):
        k = pool.persistent("k", (4,), torch.float32)
        pool.release(k)
        v = pool.persistent("v", (4,), torch.float32)
    assert (pool.of(k.tensor), pool.of(v.tensor)) == (k, v)


def test_what_is_not_held_cannot_be_released():
    pool = BufferPool(where=lambda: "all_gather")
    k = pool.persistent("k", (4,), torch.float32)
    pool.release(k)
    with pytest.raises(HazardError, match=r"double release: buffer k is released in all_gather.* its memory is free$"):
        pool.release(k)
    foreign = BufferPool().persistent("w", (4,), torch.float32)
    with pytest.raises(HazardError, match="buffer w is released in all_gather, but it is no persistent buffer"):
        pool.release(foreign)


def semaphore() -> Semaphore:
    return Semaphore("k step 1", waiter="rank 0's sdpa", signaller="rank 1's send")


def test_semaphore_completes_just_as_many_arrivals_as_needed():
    done = []
    counting = semaphore()
    for name in "abc":
        counting.signal_on(lambda name=name: done.append(name))
    counting.wait(0)
    assert done == []
    counting.wait(2)
    assert (done, counting.value) == (["a", "b"], 2)
    counting.wait(1)
    assert done == ["a", "b"]
    counting.wait(3)
    assert done == ["a", "b", "c"]


def test_semaphore_that_nobody_will_raise_is_an_error():
    never = semaphore()
    never.signal_on(lambda: None)
    said = r"rank 0's sdpa waits until semaphore k step 1 is 2, which stands at 1 after all that rank 1's send will add"
    with pytest.raises(HazardError, match=said):
        never.wait(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_memory_asks_for_large_pages_of_its_own(dtype):
    count = (5 << 20) // dtype.itemsize
    buffer = BufferPool().persistent("k", (2, count), dtype)
    assert (buffer.tensor.shape, buffer.tensor.dtype) == ((2, count), dtype)
    assert buffer.tensor.is_contiguous() and not buffer.tensor.is_meta
    flags = flags_of_memory(buffer.tensor.data_ptr())
    if "hg" not in flags and not LARGE_PAGES.exists():
        pytest.skip("this system has no transparent large pages")
    assert buffer.tensor.data_ptr() % (2 << 20) == 0
    assert "hg" in flags  # large pages were asked for
    assert "sh" not in flags  # shared memory would be granted none
    last = flags_of_memory(buffer.tensor.data_ptr() + buffer.tensor.nbytes - 1)
    assert last == flags


def test_a_device_without_memory_has_buffers_of_any_size():
    with torch.device("meta"):
        assert BufferPool().persistent("k", (2, 8 << 20), torch.float32).tensor.is_meta


LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def flags_of_memory(address: int) -> list[str]:
    """Read what Linux notes of the mapping that holds an address, as smaps has it; nothing elsewhere."""
    smaps, inside = Path("/proc/self/smaps"), False
    for line in smaps.read_text().splitlines() if smaps.exists() else ():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []
