"""Communication parity: what counts as the same, what has a reason, what fails."""

from __future__ import annotations

import pytest

from parity.measure.comm import (
    ARGMAX,
    FUSED,
    GROUPS,
    HEAD_STATS,
    HOST,
    LOOKED_INTO,
    SILENT,
    STATS,
    STREAMS,
    decoding_differences,
    differences,
    unexplained,
)


def entry(collective: str, axis: int, size: int, group: str = "tp") -> dict:
    return {"collective": collective, "axis": axis, "bytes": size, "group": group}


REFERENCE = [
    entry("all_gather", 1, 64),
    entry("ring_attention", 0, 4096, "ring"),
    entry("reduce_scatter", 1, 2048),
    entry("all_gather", 0, 512, "sp"),
]
DEVICE = [{k: v for k, v in e.items() if k != "group"} for e in REFERENCE[:3]]


def changed(index: int, **values) -> list[dict]:
    return [{**e, **values} if i == index else e for i, e in enumerate(DEVICE)]


def test_the_tail_that_reads_back_has_a_reason():
    found = differences(REFERENCE, DEVICE)
    assert [(f["index"], f["reason"]) for f in found] == [(3, HOST)]
    assert unexplained(found) == 0


@pytest.mark.parametrize(("wider", "reason"), [(16, STATS), (32, HEAD_STATS)])
def test_wider_norm_statistics_have_a_reason(wider, reason):
    found = differences(REFERENCE, changed(0, bytes=64 * wider))
    assert found[0]["reason"] == reason
    assert unexplained(found) == 0


@pytest.mark.parametrize(
    "device",
    [
        changed(1, axis=1),
        changed(2, bytes=4096),
        changed(0, bytes=128),
        changed(2, collective="all_gather"),
        DEVICE[:2],
        DEVICE[1:],
        [*DEVICE, DEVICE[0], DEVICE[0]],
    ],
    ids=["axis", "bytes", "bytes_of_gather", "name", "missing_last", "missing_first", "too_many"],
)
def test_any_other_difference_fails(device):
    assert unexplained(differences(REFERENCE, device)) > 0


DECODER = [
    *(entry("neighbor_pad", 0, 96, "sp"), entry("all_gather", 1, 96), entry("all_gather", 1, 640)),
    *(entry("neighbor_pad", 0, 96, "sp"), entry("all_gather", 0, 512, "sp")),
]
"""Two chunks: a border, statistics of a group norm and the result; a border and the result, over the other axis."""
CHUNKS = [DECODER[0], entry("all_gather", 1, 64), DECODER[3]]


def test_results_of_chunks_and_sums_without_a_count_have_a_reason():
    found = differences(DECODER, CHUNKS, results=2)
    assert [f["reason"] for f in found] == [HOST, HOST, GROUPS]


@pytest.mark.parametrize(
    ("device", "results"), [(CHUNKS, 1), (CHUNKS, 3), ([CHUNKS[0], CHUNKS[2]], 2), (CHUNKS[1:], 2), (CHUNKS[:2], 2)]
)
def test_results_are_counted(device, results):
    assert unexplained(differences(DECODER, device, results)) > 0


SPLIT = [entry("all_to_all", 1, 96), entry("all_to_all", 1, 96), entry("reduce_scatter", 0, 64)]


def exchanged(*sizes: int) -> list[dict]:
    """TTNN's exchanges of a split prompt, and what follows them."""
    found = [{"collective": "all_to_all", "axis": 1, "bytes": size} for size in sizes]
    return [*found, {"collective": "reduce_scatter", "axis": 0, "bytes": 64}]


def test_two_streams_exchanged_one_after_the_other_have_a_reason():
    found = differences(SPLIT, exchanged(64, 32, 64, 32))
    assert [(f["index"], f["reason"], f["ttnn"]["parts"]) for f in found] == [
        (0, STREAMS, [64, 32]),
        (1, STREAMS, [64, 32]),
    ]


def test_a_silent_prompt_that_stays_where_it_is_has_a_reason():
    found = differences(SPLIT, exchanged(64, 32, 64))
    assert [(f["index"], f["reason"]) for f in found] == [(0, STREAMS), (1, SILENT)]


@pytest.mark.parametrize(
    "sizes",
    [(64, 32, 32), (64, 64, 64, 32), (64, 32, 64, 16), (64, 64), (64, 32), (64, 32, 64, 32, 64)],
    ids=["image_not_exchanged", "bytes", "bytes_of_prompt", "prompt_never_exchanged", "one_missing", "too_many"],
)
def test_any_other_exchange_of_a_split_prompt_fails(sizes):
    assert unexplained(differences(SPLIT, exchanged(*sizes))) > 0


def test_a_collective_inside_a_larger_op_is_listed_and_stays_exact():
    fused = changed(1, within="ttnn.experimental.all_gather_minimal_matmul_async")
    listed = [entry["index"] for entry in differences(REFERENCE, fused) if entry["reason"] == FUSED]
    assert listed == [1]
    assert unexplained(differences(REFERENCE, fused)) == 0
    other = [fused[0], fused[1] | {"bytes": fused[1]["bytes"] + 32}, *fused[2:]]
    assert unexplained(differences(REFERENCE, other)) > 0


DECODED = [
    entry("reduce_scatter", 1, 512),
    entry("all_gather", 1, 256),
    entry("all_gather", 1, 12),
    entry("all_gather", 1, 192),
]
"""A prompt's pass, its best next token, and the best tokens of 16 proposals."""
LOGITS = 1024
ON_DEVICE = [
    {k: v for k, v in e.items() if k != "group"} | {"bytes": b}
    for e, b in zip(DECODED, (512, 256, 8, 128), strict=True)
]
AGAIN = [*ON_DEVICE[:2], {"collective": "all_gather", "axis": 1, "bytes": LOGITS}]
"""What follows: the prompt's pass, and its logits."""


def test_best_tokens_and_the_pass_that_is_looked_into_have_reasons():
    found = decoding_differences(DECODED, [*ON_DEVICE, *AGAIN], LOGITS)
    assert [f["reason"] for f in found] == [ARGMAX, ARGMAX, LOOKED_INTO, LOOKED_INTO, LOOKED_INTO]


@pytest.mark.parametrize(
    "device",
    [
        ON_DEVICE[:3],
        [*ON_DEVICE[:2], ON_DEVICE[2] | {"bytes": 12 * 16}, ON_DEVICE[3]],
        [ON_DEVICE[1], *ON_DEVICE[1:]],
        [*ON_DEVICE, ON_DEVICE[1], AGAIN[2]],
        [*ON_DEVICE, *AGAIN[:2], AGAIN[2] | {"bytes": 8}],
        [*ON_DEVICE, AGAIN[2], AGAIN[2]],
    ],
    ids=["missing", "bytes_of_norm_statistics", "name", "another_pass", "other_logits", "logits_twice"],
)
def test_anything_else_that_decoding_sends_fails(device):
    assert unexplained(decoding_differences(DECODED, device, LOGITS)) > 0
