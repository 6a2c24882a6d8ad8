"""``refsim ops``: the operations of a block, what they fuse and what they move, from shapes alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from typer.testing import CliRunner

from parity.cases import checkpoints
from refsim.base.config import parse_parallel
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions
from refsim.cli.app import app
from refsim.cli.commands import time_ttnn
from refsim.timing.predict.estimate import estimate
from tests.json_output import loads
from tt_impl.reports import ops
from tt_impl.run.launch import Outcome, Worker

TOKENS, PROMPT = 4096, 333
"""A picture of 1024 pixels; three prompt encoders' tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config.json with two kinds of blocks: 192 features, 3 heads of 64, dual attention in the first block."""
    path = tmp_path_factory.mktemp("model")
    model = checkpoints.MODELS["sd35_tiny64"]
    config = model.config | {"_class_name": model.class_name, "pos_embed_max_size": 64}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def outcome(folder: Path, worker: Worker) -> Outcome:
    options = RunOptions.of(mesh="t3k", parallel="sp2_tp4", backend="ttnn-mock")
    return ops.count(str(folder), options, run=worker.execute)


def test_blocks_of_the_whole_model(outcome: Outcome) -> None:
    """One entry per kind of block, counted as the configuration has them; no weights and no values are needed."""
    config = checkpoints.MODELS["sd35_tiny64"].config
    report = outcome.report
    assert sum(block["count"] for block in report["blocks"]) == config["num_layers"]
    assert [block["kind"] for block in report["blocks"]][-1] == "last"
    assert report["shape"] == [2, 4] and outcome.tensors == {}


def test_totals_are_the_rows(outcome: Outcome) -> None:
    for block in [*outcome.report["blocks"], outcome.report["around"]]:
        rows, totals = block["operations"], block["totals"]
        assert totals["operations"] == sum(row["count"] for row in rows) > 5
        for key in ("read_bytes", "written_bytes", "link_bytes"):
            assert totals[key] == sum(row[key] * row["count"] for row in rows) > 0
        assert totals["l1_bytes"] == max(row["cb_bytes"] + row["l1_bytes"] for row in rows)


def test_the_command_writes_the_rows_of_its_json(
    folder: Path, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "count", lambda *given, **more: outcome)
    table = tmp_path / "ops.csv"
    words = ["ops", str(folder), "--mesh", "t3k", "--parallel", "sp2_tp4", "--csv", str(table), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = loads("ops", done.stdout)
    told = [(part["kind"], op) for part in [*found["blocks"], found["around"]] for op in part["operations"]]
    written = pd.read_csv(table)
    assert list(written["block"]) == [kind for kind, _ in told]
    for name in ("op", "count", "read_bytes", "link_bytes"):
        assert list(written[name]) == [op[name] for _, op in told]


def test_bytes_of_one_device(outcome: Outcome) -> None:
    """256 features (192 padded for 4 devices) in bf16, 4096 tokens over sp2: what the block's collectives move."""
    rows = outcome.report["blocks"][-1]["operations"]
    local = TOKENS // 2 * (256 // 4) * 2
    streams = [row for row in rows if row["op"].endswith("all_gather_async") and row["read_bytes"] == local]
    assert streams
    for row in streams:
        assert (row["written_bytes"], row["link_bytes"]) == (4 * local, 3 * local)
    ring = next(row for row in rows if "ring_joint" in row["op"])
    head = 64 * 2  # one of 4 padded heads on a device, bf16
    assert ring["link_bytes"] == 2 * TOKENS // 2 * head
    # Queries, keys and values of both streams, and the gathered keys and values.
    prompt = -(-PROMPT // 32) * 32
    assert ring["read_bytes"] == (3 * TOKENS // 2 + 3 * prompt + 2 * TOKENS) * head
    lse = 32 * 4  # a tile's width in fp32 for every query
    assert ring["written_bytes"] == (TOKENS // 2 + prompt) * (head + lse) + 2 * TOKENS * head
    # The matmul that gathers writes what comes, and reads all of it: 4 parts, the weight (256 x 192), the bias' tile.
    gathering = next(row for row in rows if "all_gather_minimal" in row["op"] and row["read_bytes"] > 5 * local)
    assert gathering["read_bytes"] == 5 * local + 256 * 192 * 2 + 32 * 192 * 2
    assert gathering["written_bytes"] == 4 * local + TOKENS // 2 * 192 * 2


def test_text(outcome: Outcome) -> None:
    text = ops.text(outcome)
    assert "mock t3k (2x4)" in text and "ring_joint_scaled_dot_product_attention" in text
    assert all(f"{block['kind']}" in text for block in outcome.report["blocks"])


def test_the_program_is_priced_beside_the_reference(folder: Path, outcome: Outcome, worker: Worker) -> None:
    """``refsim time --from ttnn-mock``: each operation of each block is there once, beside the reference's classes."""
    mesh = get_mesh("t3k")
    reference = estimate(str(folder), mesh, parse_parallel("sp2_tp4", mesh), size="1024")
    reports = []

    def run(*args: object, **more: object) -> Outcome:
        reports.append(worker.execute(*args, **more))
        return reports[-1]

    found = time_ttnn.compare(reference, str(folder), (128, 128), run)
    parts = [*outcome.report["blocks"], outcome.report["around"]]
    assert {part["kind"]: part["count"] for part in parts}["last"] == 1
    launched = sum(row["count"] for key in ("priced", "unpriced") for row in reports[0].report[key])
    first = sum(part["count"] * part["totals"]["operations"] for part in parts)
    assert 0.9 * first < launched <= first, "what is made once and kept is not run again"
    rings = [ran for ran in reports[0].report["priced"] if ran["name"].startswith("RingJoint")]
    config = checkpoints.MODELS["sd35_tiny64"].config
    assert sum(ran["count"] for ran in rings) == config["num_layers"] + len(config["dual_attention_layers"])
    assert {row["op"] for row in found.unpriced} == {"FillPadDeviceOperation"}, "heads cut out of QKV are priced"
    assert found.reference_seconds == pytest.approx(reference.seconds)
    assert found.seconds == pytest.approx(sum(row.ttnn_s for row in found.classes))
    assert [row.op_class for row in found.classes] == [
        *("matmul", "sdpa", "norm", "elementwise", "layout", "collective", "host")
    ]
    assert "mock t3k (2x4)" in time_ttnn.text(found)


def test_what_cannot_be_counted(folder: Path, worker: Worker) -> None:
    options = RunOptions.of(mesh="n150", parallel="sp1", backend="ttnn-mock")
    with pytest.raises(UserError, match=r"size '4k' is not known for .*; choose one of 512, 1024"):
        ops.count(str(folder), options, size="4k", run=worker.execute)
    with pytest.raises(UserError, match="'huge' is neither a folder"):
        ops.count("huge", options, run=worker.execute)


def test_fused_or_not() -> None:
    """An activation that ttnn runs by itself is not fused, though the call names it."""
    pytest.importorskip("ttnn")
    from tt_impl.trace.fused import fuses

    def call(name: str, **kwargs: object) -> SimpleNamespace:
        return SimpleNamespace(name=name, args=(), kwargs=kwargs)

    linear = call("ttnn.linear", bias=1, activation="gelu")
    assert fuses(linear, ["MatmulDeviceOperation"]) == [["bias", "activation"]]
    assert fuses(linear, ["MatmulDeviceOperation", "UnaryDeviceOperation"]) == [["bias"], []]
    assert fuses(call("ttnn.linear", bias=None), ["MatmulDeviceOperation"]) == [[]]
    addcmul = call("ttnn.experimental.dit_minimal_matmul_addcmul_fused", bias_tensor=1)
    assert fuses(addcmul, ["MinimalMatmulDeviceOperation"]) == [["gate", "residual", "bias"]]
    norm = call("ttnn.experimental.dit_layernorm_post_allgather", weight=1, bias=1)
    assert fuses(norm, ["LayerNorm"]) == [["scale and shift"]]
