"""A whole model is allocated from shapes alone, and the allocator's figures add up.

SD3.5-Large itself, with all its 38 blocks, is allocated by ``nox -s ttnn`` (``refsim memory``).
"""

from __future__ import annotations

import pytest

from refsim.errors import UserError
from refsim.options import RunOptions
from tt_impl import memory
from tt_impl.launch import Worker

DRAM = 12 * 1072693184
"""Bytes of one Wormhole device that ttnn hands out."""

BLOCKS = {
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 4,
    "num_attention_heads": 38,
    "attention_head_dim": 64,
    "caption_projection_dim": 2432,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
    "qk_norm": "rms_norm",
}
BLOCK = 36 * 2432**2 + 30 * 2432 + 4 * 64
"""Parameters of a block of SD3.5-Large that does not drop the prompt."""


def options(mesh: str, parallel: str) -> RunOptions:
    return RunOptions.of(mesh=mesh, parallel=parallel, backend="ttnn-mock")


def test_four_blocks_on_t3k(worker: Worker) -> None:
    """Both cfg groups hold the same."""
    outcome = memory.plan(BLOCKS, options("t3k", "cfg2_sp2_tp2"), optable=True, run=worker.execute)
    first, second = outcome.report["groups"]
    sizes = ("shape", "parameters", "total", "weights", "persistent", "peak", "headroom", "largest_free")
    assert {k: first[k] for k in sizes} == {k: second[k] for k in sizes}
    assert first["shape"] == [2, 2]
    assert first["parameters"] == 8_146_280_768 - 34 * BLOCK  # 38 blocks: 8 056 627 520 and the positional table
    assert first["total"] == DRAM
    # Half of the sharded weights in bf16, the positional table on the host, what is replicated (time, text, output),
    # the tiles of biases.
    half = first["parameters"] - 192 * 192 * 2432
    assert half < first["weights"] < 1.1 * half
    assert first["weights"] < first["persistent"] < first["peak"] < first["total"]
    assert first["headroom"] == first["total"] - first["peak"]
    assert first["peak_op"].startswith("ttnn.")
    # What the operations were seen to take, one by one, is what the capture of the whole forward says.
    resources = outcome.resources or {}
    assert resources["peak_dram"] == {"bytes": first["peak"], "op": first["peak_op"], "total": first["total"]}
    assert outcome.collectives and outcome.tensors == {}
    text = memory.text(outcome, "large")
    assert "headroom" in text and "mock t3k (2x4)" in text and "peak L1 of a core" in text


def test_no_such_model(worker: Worker) -> None:
    with pytest.raises(UserError, match=r"model 'huge' does not exist; choose one of sd35-medium, sd35-large\."):
        memory.plan("huge", options("n150", "sp1"), run=worker.execute)
