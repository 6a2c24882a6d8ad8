"""The table of operations of a program: what ttnn would put on the cores, beside the values of the same program."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import safetensors.torch
import torch

from parity.cases import checkpoints, model_folders
from refsim.base.options import RunOptions
from tt_impl.run import launch

L1_BYTES = 1499136


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, worker: launch.Worker) -> launch.Outcome:
    """One block with dual attention, 192 features padded to 256, on t3k sp2_tp4."""
    folder: Path = tmp_path_factory.mktemp("block")
    model_folders.build(checkpoints.MODELS["sd35_tiny64"], 0, folder)
    g = torch.Generator().manual_seed(0)
    sizes = {"spatial": (1, 128, 192), "prompt": (1, 45, 192), "time": (1, 192)}
    inputs = {name: torch.randn(size, generator=g) for name, size in sizes.items()}
    safetensors.torch.save_file(inputs, folder / "inputs.st")
    return worker.execute(
        "tt_impl.pipelines.block:program",
        RunOptions.of(mesh="t3k", parallel="sp2_tp4", backend="ttnn-mock"),
        {"checkpoint": str(folder), "inputs": str(folder / "inputs.st"), "index": 0},
        optable=True,
    )


def test_values_are_untouched(outcome: launch.Outcome) -> None:
    assert outcome.tensors["spatial"].shape == (1, 128, 192)
    assert outcome.tensors["spatial"].float().std() > 0.1


def test_rows(outcome: launch.Outcome) -> None:
    rows = outcome.optable
    assert rows
    keys = {
        *("op", "device_op", "inputs", "outputs", "fidelity", "fp32_acc", "programs", "cores"),
        *("cb_bytes", "l1_bytes", "dram_bytes", "count", "fuses", "read_bytes", "written_bytes", "link_bytes"),
    }
    assert all(set(row) == keys for row in rows)
    assert all(row["outputs"] and 0 <= row["cores"] <= 64 and 0 <= row["cb_bytes"] < L1_BYTES for row in rows)
    # The operations that communicate are those that the recorder saw.
    communicates = {
        *("all_gather_async", "all_gather_minimal_matmul_async"),
        *("reduce_scatter_minimal_async", "ring_joint_scaled_dot_product_attention"),
    }
    ours: Counter[str] = Counter()
    for row in rows:
        if row["op"].rpartition(".")[2] in communicates:
            ours[row["op"]] += row["count"]
            assert row["programs"] == 8
    assert ours == Counter(op["op"] for op in outcome.ops if "collectives" in op)


def test_linear_and_ring_attention(outcome: launch.Outcome) -> None:
    rows = outcome.optable or []
    linear = next(row for row in rows if row["op"].endswith("all_gather_minimal_matmul_async"))
    # 64 of 256 lanes are here, the others come; the last tensor is what they are gathered into.
    assert linear["inputs"] == [[1, 1, 64, 64], [1, 1, 256, 192], [1, 1, 64, 256], [1, 1, 1, 192]]
    assert linear["device_op"] == "AllGatherMinimalMatmulAsyncOp"
    assert linear["fuses"] == ["all_gather", "bias"]
    assert (linear["fidelity"], linear["fp32_acc"]) == ("HiFi2", True)
    # q, k, v of one head on 64 of the 128 rows.
    assert {"shape": [1, 1, 64, 192], "dtype": "BFLOAT16", "bytes": 64 * 192 * 2} in linear["outputs"]
    ring = next(row for row in rows if row["op"].endswith("ring_joint_scaled_dot_product_attention"))
    assert (ring["fidelity"], ring["fp32_acc"]) == ("HiFi2", False)
    assert ring["cb_bytes"] > 0
    # 45 prompt rows lie in two tiles.
    assert ring["outputs"][1] == {"shape": [1, 1, 45, 64], "dtype": "BFLOAT16", "bytes": 64 * 64 * 2}


def test_split_heads_has_all_outputs(outcome: launch.Outcome) -> None:
    heads = next(r for r in outcome.optable or [] if r["op"] == "ttnn.experimental.nlp_create_qkv_heads")
    assert [out["shape"] for out in heads["outputs"]] == [[1, 1, 64, 64]] * 3


def test_resources(outcome: launch.Outcome) -> None:
    """The fullest core holds an operation's buffers, what a layer hands to itself, and some semaphores; DRAM holds
    weights and streams."""
    rows, found = outcome.optable or [], outcome.resources or {}
    assert found["operations"] == sum(row["count"] for row in rows) > found["different"] == len(rows)
    assert sum(found["fidelities"].values()) == found["operations"] and found["fidelities"]["HiFi2"] > 0
    largest = max(rows, key=lambda row: row["cb_bytes"])
    fullest = max(rows, key=lambda row: row["cb_bytes"] + row["l1_bytes"])
    assert found["peak_l1"] == {"op": fullest["op"], "bytes": fullest["cb_bytes"] + fullest["l1_bytes"]}
    hidden = 2 * 64 * 4 * 256 // 4  # the longest such tensor: 64 rows of four times the features, cut over tp
    assert largest["cb_bytes"] <= found["peak_l1"]["bytes"] <= largest["cb_bytes"] + hidden + 1024
    assert found["peak_dram"]["total"] == 12 * 1072693184
    weights = sum(math.prod(t) * 2 for t in {tuple(row["inputs"][1]) for row in rows if "matmul" in row["op"]})
    assert weights < found["peak_dram"]["bytes"] == max(row["dram_bytes"] for row in rows) < 10 * weights
    assert rows[0]["dram_bytes"] < found["peak_dram"]["bytes"]
