"""A whole model is allocated from shapes alone, and the allocator's figures add up.

The published models, all blocks, are allocated by ``nox -s ttnn`` (``refsim memory``).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.cli.app import app
from refsim.files.tables import flat
from refsim.models.spec import Published
from tests.json_output import loads
from tt_impl.reports import memory
from tt_impl.reports.residency import TABLE, Model, residency
from tt_impl.run.launch import Outcome, Worker

DRAM = 12 * 1072693184
"""Bytes of one Wormhole device that ttnn hands out."""
LARGE = memory.find_published("sd35-large")
FOUR = LARGE.but(config=LARGE.config | {"num_layers": 4})
BLOCK = 36 * 2432**2 + 30 * 2432 + 4 * 64
"""Parameters of a block of SD3.5-Large that does not drop the prompt."""


def plan(
    worker: Worker, model: Published, mesh: str, parallel: str, size: tuple[int, ...] = (128, 128), **more: bool
) -> Outcome:
    options = RunOptions.of(mesh=mesh, parallel=parallel, backend="ttnn-mock")
    return memory.plan(model, options, memory.input_shapes(model, size, options), run=worker.execute, **more)


@pytest.fixture(scope="module")
def outcome(worker: Worker) -> Outcome:
    return plan(worker, FOUR, "t3k", "cfg2_sp2_tp2", optable=True)


def test_four_blocks_on_t3k(outcome: Outcome) -> None:
    (found,) = outcome.report["groups"]
    assert found["shape"] == [2, 2]
    assert found["parameters"] == 8_146_280_768 - 34 * BLOCK  # 38 blocks: 8 056 627 520 and the positional table
    assert found["total"] == DRAM
    # Half of the sharded weights in bf16, the positional table on the host, what is replicated (time, text, output),
    # the tiles of biases.
    half = found["parameters"] - 192 * 192 * 2432
    assert half < found["weights"] < 1.1 * half
    assert found["weights"] < found["persistent"] < found["peak"] < found["total"]
    assert found["headroom"] == found["total"] - found["peak"]
    # Every buffer that stays has an owner, whose bytes the allocator confirms.
    assert sum(owner["bytes"] for owner in found["owners"]) == found["persistent"] - found["weights"]
    assert {owner["owner"] for owner in found["owners"]} == {"all_gather", "ring.k", "ring.v"}
    # What the operations were seen to take, one by one, is what the capture of the whole forward says.
    resources = outcome.resources or {}
    assert resources["peak_dram"] == {"bytes": found["peak"], "op": found["peak_op"], "total": found["total"]}
    assert resources["peak_l1"] == {"bytes": found["l1"]["peak"], "op": found["l1"]["peak_op"]}
    assert 0 < found["l1"]["kept"] <= found["l1"]["tensors"] < found["l1"]["peak"] < found["l1"]["total"]
    assert outcome.collectives and outcome.tensors == {}
    text = memory.text(outcome, "large")
    assert "headroom" in text and "mock t3k (2x4)" in text and "of ring.k on axis 0" in text and "Fits: " in text


def test_the_command_writes_the_values_of_its_json(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "plan", lambda *given, **more: outcome)
    table = tmp_path / "memory.csv"
    words = ["memory", "sd35-large", "--mesh", "t3k", "--parallel", "cfg2_sp2_tp2"]
    done = CliRunner().invoke(app, [*words, "--optable", "--csv", str(table), "--json"])
    assert done.exit_code == 0, done.output
    found = loads("memory", done.stdout)
    assert found["resources"] == outcome.resources and found["optable"] == outcome.optable
    (row,) = pd.read_csv(table, keep_default_na=False).to_dict("records")
    assert json.loads(row.pop("groups")) == found["groups"] and json.loads(row.pop("latent")) == found["latent"]
    assert row == {name: value for name, value in flat(found).items() if name in row}
    assert {"name", "mesh", "parallel", "ran", "wall_s", "fits"} <= row.keys()


def test_what_is_needed_is_what_is_allocated(worker: Worker) -> None:
    """A model that would fit is measured both ways: block by block, as one that does not fit, and really."""
    options = RunOptions.of(mesh="n300", parallel="tp2", backend="ttnn-mock")
    shapes = {name: list(shape) for name, shape in memory.input_shapes(FOUR, (64, 64), options).items()}
    one, other = (
        worker.execute(program, options, {"model": FOUR.config, "shapes": shapes}, values=False).report["groups"][0]
        for program in (memory.PROGRAM, memory.NEEDS)
    )
    same = ("parameters", "weights", "persistent", "peak", "peak_op", "headroom", "owners", "l1")
    assert {key: one[key] for key in same} == {key: other[key] for key in same}


def test_a_model_that_does_not_fit_says_what_to_shrink(worker: Worker) -> None:
    outcome = plan(worker, LARGE, "n150", "sp1")
    group = outcome.report["groups"][0]
    assert not outcome.report["fits"] and "Out of Memory" in outcome.report["refused"]
    assert group["weights"] > group["total"] == DRAM and group["parameters"] == 8_146_280_768
    assert "DOES NOT FIT" in memory.text(outcome, "large")
    assert "shrink weights from" in memory.verdict(outcome.report)


GROUP = {"total": 100, "weights": 40, "persistent": 50, "peak": 90, "peak_op": "ttnn.gelu", "headroom": 10}
L1 = {"total": 10, "peak": 9, "peak_op": "ttnn.linear", "tensors": 1, "headroom": 1}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"weights": 90, "persistent": 95, "peak": 110, "headroom": -10}, ["shrink weights"]),
        ({"persistent": 120, "peak": 130, "headroom": -30}, ["shrink persistent buffers"]),
        ({"peak": 130, "headroom": -30}, ["shrink activations, at most in ttnn.gelu"]),
        ({"l1": L1 | {"peak": 12, "headroom": -2}}, ["2 B of a core's L1 too much in ttnn.linear"]),
    ],
)
def test_the_largest_owner_is_named(changed: dict, said: list[str]) -> None:
    found = memory.shrink(GROUP | {"l1": L1} | changed)
    assert len(found) == len(said) and all(part in line for part, line in zip(said, found, strict=True))


def test_models_that_cannot_stay_are_swapped() -> None:
    encoder, first, second, decoder = Model("t5", 5, 1), Model("a", 7, 2), Model("b", 7, 2), Model("vae", 1, 6)
    everything = residency((encoder, first, second, decoder), 26)
    assert everything and everything.swapped == () and (everything.peak, everything.fullest) == (26, "vae")
    tight = residency((encoder, first, second, decoder), 25)  # the decoder works beside both experts, not beside t5
    assert tight and tight.swapped == ("t5",) and tight.loaded == 5
    experts = residency((encoder, first, second, decoder), 15)
    assert experts and experts.swapped == ("a", "b")  # one that stays would be in the other's way
    assert residency((first, decoder), 8) is None


def test_stages_of_a_pipeline() -> None:
    options = RunOptions.of(mesh="t3k", parallel="cfg2_sp2_tp2", backend="ttnn-mock")
    found = memory.stages(LARGE, (128, 128), options)
    assert [stage.name for stage in found] == ["clip_l", "clip_g", "t5", "transformer", "decoder"]
    assert found[2].shapes["input_ids"] == (1, 256) and found[3].shapes["hidden_states"][0] == 1


def test_no_such_model() -> None:
    with pytest.raises(
        UserError, match=r"model 'huge' does not exist in TTNN; choose one of sd35-medium, sd35-large, "
    ):
        memory.find_published("huge")


def test_a_report_is_one_run(tmp_path) -> None:
    before = {"system": list(TABLE.systems[0]), "ran": "", "stages": []}
    (tmp_path / "memory.json").write_text(json.dumps([before]))
    missing = {"stage": "transformer", "model": "wan22-t2v-a14b", "missing": "not today"}
    row = {"system": ["wan22-t2v-a14b", "480p", "t3k", "sp2_tp4"], "ran": "", "stages": [missing]}
    table = replace(TABLE, measure=lambda system, worker: row)
    assert table.write(tmp_path, match="wan22 t3k") == [row]
    assert json.loads((tmp_path / "memory.json").read_text()) == [row]
    page = (tmp_path / "README.md").read_text()
    assert "| wan22-t2v-a14b 480p | t3k | sp2_tp4 | not today |" in page and "sd35" not in page
    with pytest.raises(UserError, match="no system has the words 'llama'"):
        table.write(tmp_path, match="llama")
