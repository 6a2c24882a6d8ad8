"""Large memory: on pages of its own, taken again once it is free, and given back beyond a bound."""

import mmap

import pytest

from refsim.runtime.launch import end_ranks
from refsim.runtime.transports import pages
from tests.refsim.helpers import run

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages")


@pytest.fixture(autouse=True)
def nothing_yet(monkeypatch):
    monkeypatch.setattr(pages, "_all", [])


def test_what_is_small_is_no_matter_of_large_pages():
    assert pages.allocated(4 * MIB - 1) is None
    assert pages.allocated(4 * MIB).shape == (4 * MIB,)


def test_what_is_free_is_taken_again_and_what_is_in_use_is_not():
    first, second = pages.allocated(5 * MIB), pages.allocated(5 * MIB)
    places = {first.data_ptr(), second.data_ptr()}
    assert len(places) == 2
    view = first[3:]
    del first
    assert pages.allocated(5 * MIB).data_ptr() not in places  # the view is still in use
    del view
    again = pages.allocated(5 * MIB)
    assert again.data_ptr() in places - {second.data_ptr()}
    assert pages.allocated(6 * MIB).data_ptr() not in places
    assert again.data_ptr() % (2 * MIB) == 0


def test_what_was_asked_for_longest_ago_is_given_back_first():
    taken = [pages.allocated(size * MIB) for size in (30, 20, 12, 40)]
    pages.trim()
    assert len(pages._all) == 4  # all in use
    del taken
    pages.trim()
    assert [len(one) // MIB for one in pages._all] == [14, 42]  # each 2 MiB more, to begin on a page; 64 at most


def test_a_rank_has_the_buffers_of_its_last_job_again():
    end_ranks()
    found = [[value["found"] for value in run("large_buffers", "n300", "sp2").values] for _ in range(2)]
    assert found[0] == [[0.0, 0.0]] * 2  # as the kernel hands pages out
    assert [sorted(one) for one in found[1]] == [[1.0, 2.0]] * 2
