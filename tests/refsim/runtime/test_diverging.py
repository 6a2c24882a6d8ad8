"""Ranks that make different calls: the one that differs is named, with what it should have called, within a second."""

import time

import pytest

from refsim.base.errors import RankFailure
from refsim.runtime.watch.calls import Call, first_difference
from tests.refsim.helpers import run

MESH, PARALLEL, ODD = "t3k-1x8", "sp8", 5
PROGRAM = "diverging_programs:one_diverges"
SECONDS = 8.0  # what "within a second" means on a busy machine; the bound of a wait is 30

TOLD = {
    "float32 as int32": (
        r"rank 5 called all_gather\(int32 \[1024\], dim=0\) over sp where ranks? [0-7, ]+ called "
        r"all_gather\(float32 \[1024\], dim=0\) over sp"
    ),
    "bfloat16 as float16": r"rank 5 called all_gather\(float16 .* called all_gather\(bfloat16 \[1024\], dim=0\)",
    "another order": r"rank 5 called all_reduce\(\) over sp where ranks? .* called all_gather\(float32",
    "another root": r"rank 5 called broadcast\(float32 \[1024\], root=3\) .* called broadcast\(.*, root=2\)",
    "another dim": r"rank 5 called all_gather\(float32 \[32, 32\], dim=1\) .* called all_gather\(float32 \[1024\],",
    "one call fewer": r"rank 5 called broadcast\(.*\) .* called all_reduce\(\) over sp",
    "one call fewer at the end": r"rank 5 ended its program where ranks .* called broadcast\(.*, root=2\)",
    "one call more": r"rank 5 called all_reduce\(\) over sp where ranks 0, 1, 2, 3, 4, 6, 7 ended their program",
}


@pytest.mark.parametrize("transport", ["shared", "gloo"])
@pytest.mark.parametrize("how", TOLD)
def test_a_rank_that_makes_another_call_is_named(how, transport, capfd):
    run("gathered_ranks", MESH, PARALLEL, transport=transport)  # the ranks are there and have met
    began = time.monotonic()
    with pytest.raises(RankFailure, match=TOLD[how]) as caught:
        run(
            "diverging_programs:one_diverges",
            MESH,
            PARALLEL,
            {"rank": ODD, "how": how},
            transport=transport,
            timeout_s=30.0,
        )
    assert time.monotonic() - began < SECONDS
    assert caught.value.rank == ODD
    assert capfd.readouterr().err == ""  # of gloo's


SEEDED = {
    "another_dtype": r"rank 5 called reduce_scatter\(bfloat16 .* called reduce_scatter\(float32",
    "another_order": r"rank 5 called all_gather\(float32 .* called reduce_scatter\(float32",
    "another_root": r"rank 5 called broadcast\(float32 \[16\], root=1\) .* called broadcast\(float32 \[16\], root=0\)",
    "one_call_fewer": r"rank 5 called all_gather\(float32 .* called reduce_scatter\(float32",
}
"""Of ``tests/refsim/seeded_ranks.py``, what is said."""


@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_mistakes_put_into_one_rank_of_the_product_are_named(transport):
    program = "seeded_ranks:upload_and_pair"
    assert run(program, MESH, "tp8", transport=transport).tensors["out"].shape == (2, 3, 64)
    for name, told in SEEDED.items():
        began = time.monotonic()
        with pytest.raises(RankFailure, match=told) as caught:
            run(program, MESH, "tp8", transport=transport, fault=f"tests.refsim.seeded_ranks:{name}")
        assert caught.value.rank == ODD
        assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_ranks_that_agree_are_not_told_of(transport):
    assert run(PROGRAM, MESH, PARALLEL, {"rank": ODD, "how": ""}, transport=transport).value == {}


def test_of_two_the_one_that_fewer_ranks_agree_with_is_odd():
    groups = {0: 1, 1: 1, 2: 2, 3: 2}
    calls = {rank: [Call(group, 0, b"a")] for rank, group in groups.items()}
    calls[0] = [Call(1, 0, b"b")]
    difference = first_difference(calls)
    assert difference is not None
    assert (difference.rank, difference.made, difference.expected) == (0, "b", "a")


def test_who_has_ended_has_made_a_call_fewer_only_if_it_is_waited_for():
    calls = {0: [Call(1, 0, b"a"), Call(1, 1, b"b")], 1: [Call(1, 0, b"a")]}
    assert first_difference(calls) is None
    assert first_difference(calls, ended=[1]) is None
    assert first_difference(calls, waits_for={0: 1}) is None
    difference = first_difference(calls, ended=[1], waits_for={0: 1})
    assert difference is not None
    assert difference.sentence == "rank 1 ended its program where rank 0 called b (call 1 of the group)"
