"""Communication parity: what counts as the same, what has a reason, what fails."""

from __future__ import annotations

import pytest

from parity.comm import HOST, STATS, differences, unexplained


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


def test_wider_norm_statistics_have_a_reason():
    found = differences(REFERENCE, changed(0, bytes=64 * 16))
    assert found[0]["reason"] == STATS
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
