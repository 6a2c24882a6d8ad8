"""A whole model is allocated from shapes alone, and the allocator's figures add up."""

from __future__ import annotations

import pytest

from refsim.errors import UserError
from tt_impl import memory

DRAM = 12 * 1072693184
"""Bytes of one Wormhole device that ttnn hands out."""


def test_large_on_t3k() -> None:
    """SD3.5-Large fits a T3K; both cfg groups hold the same."""
    outcome = memory.plan("large", "t3k", "cfg2_sp2_tp2")
    first, second = outcome.report["groups"]
    sizes = ("shape", "parameters", "total", "weights", "persistent", "peak", "headroom", "largest_free")
    assert {k: first[k] for k in sizes} == {k: second[k] for k in sizes}
    assert first["shape"] == [2, 2]
    assert first["parameters"] == 8_146_280_768  # 8 056 627 520 and the positional table
    assert first["total"] == DRAM
    # Half of the sharded weights in bf16, the positional table on the host, what is replicated (time, text, output),
    # the tiles of biases: within 2 % of half of all.
    half = first["parameters"] - 192 * 192 * 2432
    assert half < first["weights"] < 1.02 * half
    assert first["weights"] < first["persistent"] < first["peak"] < first["total"]
    assert first["headroom"] == first["total"] - first["peak"]
    assert 4_000_000_000 < first["headroom"] < 5_000_000_000
    text = memory.text(outcome, "large")
    assert "headroom" in text and "mock t3k (2x4)" in text
    assert first["peak_op"].startswith("ttnn.")
    assert outcome.collectives and outcome.tensors == {}


def test_no_such_model() -> None:
    with pytest.raises(UserError, match=r"model 'huge' does not exist; choose one of medium, large\."):
        memory.plan("huge", "n150", "sp1")
