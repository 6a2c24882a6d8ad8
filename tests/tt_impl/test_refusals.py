"""What asks for more than a device has fails with ttnn's own words and numbers, and names the operation."""

from __future__ import annotations

import re
from typing import Any

import pytest

from parity.cases import Case
from parity.cases.suites import suite_cases
from parity.kinds.base import Measured
from parity.run.case import run_case
from parity.run.runner import Runner
from refsim.base.options import RunOptions
from tt_impl.run.launch import Worker

BLOCK = {
    "_class_name": "SD3Transformer2DModel",
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 1,
    "num_attention_heads": 38,
    "attention_head_dim": 64,
    "caption_projection_dim": 2432,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
    "qk_norm": "rms_norm",
}


def shapes(side: int) -> dict[str, list[int]]:
    """Of the inputs, for a negative and a positive prompt and a square latent."""
    return {
        "hidden_states": [2, 16, side, side],
        "encoder_hidden_states": [2, 333, 4096],
        "pooled_projections": [2, 2048],
        "timestep": [2],
    }


RING = "ttnn.transformer.ring_joint_scaled_dot_product_attention on [[2, 38, {rows}, 64], "
L1 = "circular buffers on core range [0-0 - 7-6] grow to {bytes} B which is beyond max L1 size of 1499136 B"

CASES: dict[str, tuple[str, str, str, dict[str, Any], list[str]]] = {
    "circular-buffers": (
        "n300",
        "sp2",
        "huge_chunks",
        {"model": BLOCK, "shapes": shapes(128)},
        [RING.format(rows=2048), L1],
    ),
    "chunks-longer-than-the-sequence": (
        "n300",
        "sp2",
        "long_chunks",
        {"model": BLOCK, "shapes": shapes(32)},
        [RING.format(rows=128), L1],
    ),
    "ring-buffer": (
        "n300",
        "sp2",
        "short_ring_buffer",
        {"model": BLOCK, "shapes": shapes(128)},
        [RING.format(rows=2048), "Output tensor 0 gather dim 2 too small: got 2048, expected >= 4096"],
    ),
    # ttnn's all_gather_async itself takes the short buffer, so this is our check.
    "gather-buffer": (
        "n300",
        "tp2",
        "short_gather_buffer",
        {"model": BLOCK, "shapes": shapes(128)},
        [
            "all_gather_async gathers a BFLOAT16 tensor of shape (1, 2, 4096, 128), ",
            "persistent buffer is a BFLOAT16 tensor of shape (1, 2, 4096, 64)",
        ],
    ),
    "tensor-in-l1": (
        "n300",
        "tp2",
        "hidden_in_l1",
        {"model": BLOCK, "shapes": shapes(256)},
        [
            "ttnn.experimental.minimal_matmul on [[2, 1, 16384, 2432], [1, 1, 2432, 3648], ",
            "Not enough space to allocate 239075328 B L1 buffer across 64 banks",
            "bank size is 1360544 B",
            "largest free block: {bytes} B",
        ],
    ),
    "dram": (
        "n150",
        "sp1",
        "",
        {"model": "sd35-large", "shapes": shapes(128)},
        [
            "ttnn.empty",
            "Out of Memory",
            "allocate {bytes} B DRAM buffer across 12 banks",
            "bank size is 1072693184 B",
            "free: {bytes} B",
        ],
    ),
}


class Refused(Runner):
    """A parity runner whose device program runs into a fault."""

    family = "ttnn"

    def __init__(self, worker: Worker, mesh: str, parallel: str, fault: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self._worker = worker
        self._arguments = arguments
        fault = fault and f"tests.tt_impl.refused:{fault}"
        where = {"mesh": mesh, "parallel": parallel, "backend": "ttnn-mock"}
        self._options = RunOptions.of(**where, fault=fault, timeout_s=120)

    def run(self, case: Case, seed: int) -> Measured:
        self._worker.execute("tt_impl.pipelines.allocation:program", self._options, self._arguments, values=False)
        raise AssertionError("nothing was refused")


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, worker: Worker) -> None:
    """What ttnn says is the reason for which the parity gate fails the case."""
    *program, parts = CASES[case]
    record = run_case(Refused(worker, *program), suite_cases("smoke", "ttnn-mock")[0], "ttnn-mock", 0)
    assert record.verdict == "failed" and record.error
    message = record.reason
    missing = [part for part in parts if not re.search(re.escape(part).replace(r"\{bytes\}", r"\d+"), message)]
    assert missing == [], message
    assert "backtrace" not in message
