"""Predictions and verdicts on a small made-up model, records of a device as files; one real model on one rank."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from parity.rounding import ingested, measured, minimax_h3, report, verdict
from parity.rounding import predict as predicting
from parity.rounding import published as known
from parity.rounding.drift import Drift, by_step, drift
from parity.rounding.errors import Error
from parity.rounding.predict import Row, pareto, recommend
from parity.rounding.subjects import Subject, find
from parity.rounding.verdict import Distribution
from refsim.base.device_numerics import DeviceNumerics
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.cli.app import app
from refsim.files.output import document
from refsim.runtime.launch import Result
from tests.json_output import loads
from tests.refsim.helpers import assert_one_sentence

LAYERS = ("blocks.0.to_q", "blocks.0+0", "blocks.1.to_q")


class Made(Subject):
    """A model whose answer is off by as much as its weights' format says; its second block twice as much."""

    def __init__(self) -> None:
        super().__init__("made", "n150 sp1", lambda dtype, **more: RunOptions.of(mesh="n150", dtype=dtype, **more), run)

    def layers(self, seed, numerics=""):
        x = torch.randn(100, generator=torch.Generator().manual_seed(seed))
        layers = {
            name: [x + (index + 1) * size(numerics) * torch.ones(100).cumsum(0).sin()]
            for index, name in enumerate(LAYERS)
        }
        return run(seed, self.options("fp32", device_numerics=numerics)), layers


def size(numerics: str) -> float:
    if not numerics:
        return 0.0
    spec = DeviceNumerics.parse(numerics)
    return {"bfloat16": 1e-3, "bfloat8_b": 1e-2, "bfloat4_b": 1e-1, "float32": 0.0}[spec.weights]


def run(seed: int, options: RunOptions) -> Result:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1000, generator=g)
    off = torch.randn(1000, generator=g) * size(options.device_numerics)
    return Result([{}], {"sample": x + off}, {}, [], rounded_once={"cumsum": 2} if options.device_numerics else {})


def test_error_of_a_tensor():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert Error.of([x], [x]) == Error(0.0, 0.0, 1.0)
    assert Error.of([1.5 * x], [x]).gain == pytest.approx(1.5)
    assert Error.of([x.bfloat16()], [x]).one_minus_pcc == pytest.approx(1.4e-6, rel=0.2)


def test_a_prediction_ranks_choices_and_recommends_the_cheapest_that_is_exact_enough():
    prices = {"bf16": 3.0, "bfp8": 2.0, "bfp4": 1.0}

    def seconds(weights: str, fidelity: str) -> float:
        return prices[weights.replace("bfp16", "bf16")] + len(fidelity) / 10

    prediction = predicting.predict(Made(), pcc=0.999, seconds=seconds)
    assert prediction.alone[0].name == "weights in bfloat4_b"
    assert prediction.recommended is not None
    assert prediction.recommended.name == "bfloat8_b, LoFi, 32 bits"
    assert predicting.recommend(prediction.choices, 0.99999).name.startswith("bfloat16")
    assert [each.name for each in prediction.blocks] == ["blocks.0+0"]
    assert [each.name for each in prediction.layers] == ["blocks.0.to_q", "blocks.1.to_q"]
    assert "bfloat8_b, LoFi, 32 bits" in prediction.front
    assert "bfloat4_b, HiFi4, 32 bits" not in prediction.front
    text = report.text(prediction)
    assert "Cheapest within PCC 0.999: bfloat8_b, LoFi" in text
    assert "cumsum (2)" in text
    assert loads("numerics predict", document(prediction))["recommended"]["name"].startswith("bfloat8_b")
    assert "No choice reaches PCC 1" in report.recommendation(predicting.predict(Made(), pcc=1.0))


def test_a_plot_is_drawn(tmp_path):
    prediction = predicting.predict(Made(), pcc=0.999, seconds=lambda weights, fidelity: 1.0)
    report.plot(prediction, tmp_path / "plot.svg")
    assert "bfloat8_b" in (tmp_path / "plot.svg").read_text()


def test_of_choices_without_a_time_the_most_exact_is_recommended():
    rows = [Row(name, "", Error(value, 0.0, 1.0)) for name, value in (("a", 1e-4), ("b", 1e-6), ("c", 1e-2))]
    assert recommend(rows, 0.999) is rows[1]
    assert recommend(rows, 1.0) is None
    assert pareto(rows) == [rows[1]]


def test_a_bound_follows_from_the_spread_over_seeds():
    narrow = Distribution((1e-4, 1.1e-4))
    wide = Distribution((1e-4, 1e-3))
    assert narrow.bound == pytest.approx(2 * 1.1e-4)
    assert wide.bound > 10 * 1e-3
    assert narrow.middle == pytest.approx(1.05e-4, rel=0.01)
    assert Distribution((0.0,)).bound > 0


def test_rounding_explains_a_pcc_within_its_distribution_only():
    good = verdict.judge(Made(), 1 - 8e-7, seeds=2)
    bad = verdict.judge(Made(), 0.9961, seeds=2)
    assert good.explained
    assert "rounding explains it" in good.text()
    assert not bad.explained
    assert "look here first: the layers, one by one" in bad.text()
    assert verdict.judge(Made(), 0.99995, numerics="fast:weights=bfp8_b", seeds=2).explained
    assert "ten times more exact" in verdict.judge(Made(), 1 - 1e-9, numerics="fast:weights=bfp8_b", seeds=2).text()


def test_a_record_by_layer_says_where_to_look_first():
    record = {"blocks.0.to_q": 1 - 1e-7, "blocks.0+0": 0.999, "blocks.1.to_q": 0.9, "elsewhere": 0.5}
    result = verdict.judge(Made(), None, layers=record, seeds=2)
    assert not result.explained
    assert result.look_first.startswith("blocks.0+0, the first layer")
    assert "blocks.1.to_q is farthest off" in result.look_first
    assert result.unknown == ["elsewhere"]
    beside = ingested.beside(measured.Record(record), result, [ingested.Time("matmul", 2, 10.0, None)])
    assert [row.explained for row in beside.pcc] == [True, False, False, None]
    assert loads("numerics judge", document(result))["look_first"] == result.look_first
    assert loads("numerics ingest", document(beside))["judged"] is False
    assert "| blocks.0+0 | 1.0e-03 |" in ingested.text(beside)
    assert "| matmul | 2 | 10.0 |  |" in ingested.text(beside)


def test_records_of_a_device_are_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"pcc": 0.9961, "layers": {"to_q": 0.9998, "ff": {"pcc": 0.99}}}))
    (tmp_path / "b.csv").write_text("name,pcc\nnorm,0.99999\n")
    (tmp_path / "c.log").write_text("INFO | blocks.3.attn: PCC: 0.9987\nMax ATOL 0.1 nothing here\n")
    (tmp_path / "ops_perf_results.csv").write_text("OP CODE,DEVICE KERNEL DURATION [ns]\n")
    record = measured.read(tmp_path)
    assert record.whole == 0.9961
    assert record.layers == {"to_q": 0.9998, "ff": 0.99, "norm": 0.99999, "blocks.3.attn": 0.9987}
    assert [path.name for path in record.profiles] == ["ops_perf_results.csv"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.bin", "", "holds no record of a device run"),
        ("a.log", "all is well", "holds no record of a device run"),
        ("a.json", "{", "is no JSON"),
        ("a.csv", "name,pcc\nx,high\n", "which is no PCC"),
        ("a.json", '{"pcc": 7}', "a number from -1 to 1"),
    ],
)
def test_what_is_no_record_is_refused_in_one_sentence(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        measured.read(tmp_path)
    assert_one_sentence(str(caught.value))


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist; give a folder"):
        measured.read(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "inputs", "said"),
    [
        ("moon", None, "does not exist"),
        ("flux1_pipeline_tiny64-t3k-sp2_tp4-ring-bf16", None, "is no single forward"),
        ("mochi_tin64", None, "nearest models are mochi_tiny64"),
        ("motif-6b", None, "is priced here and not run"),
        ("sd35_tiny", "in.safetensors", "--inputs"),
    ],
)
def test_a_subject_that_is_not_there_is_refused(text, inputs, said):
    with pytest.raises(UserError, match=said.replace("--", "")):
        find(text, None, inputs=inputs)


@pytest.mark.parametrize("name", ["sd35-large", "mochi-1"])  # a registered block; one made for it
def test_a_published_model_is_one_block_of_its_widths(name):
    subject = find(name, None, mesh="n300", parallel="sp2")
    assert subject.timed == name
    assert subject.layout == "n300 sp2"
    assert "one block" in subject.ran


def test_latents_are_compared_step_by_step():
    exact = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    steps = by_step(exact, {"fast": torch.stack([exact[0], exact[1] + 0.1 * exact[1].flip(0)])})
    assert steps[0].errors["fast"].one_minus_pcc < 1e-12 < steps[1].errors["fast"].one_minus_pcc
    latents = Drift("made", "n150 sp1", 0, steps, {"sdpa": 3})
    assert loads("numerics drift", document(latents))["steps"][1]["step"] == 2
    written = report.drift_text(latents)
    assert "| 1 | 0.0e+00 |" in written
    assert "Rounded once for want of a rule: sdpa (3)." in written
    with pytest.raises(UserError, match="choose one of sd3_pipeline_tiny"):
        drift("moon")


def test_published_errors_of_operations_are_predicted(monkeypatch):
    modules = ("weights in bf8", "LoFi", "H3 ff2 matmul", "VSA attention, sparsity 0.9", "Wan TI2V-5B")
    figures = [figure for figure in known._figures() if figure.module in modules]
    monkeypatch.setattr(known, "_figures", lambda: figures)
    table = known.compare(models=False)
    rows = {(row.module, row.metric): row for row in table.rows}
    assert (table.close, table.predicted) == (2, 3)
    assert rows["weights in bf8", "relative RMSE"].close
    lofi = rows["LoFi", "relative RMSE"]
    assert lofi.close
    assert lofi.predicted > 2**0.5 * lofi.published  # a gain of 0.98, which PCC does not see
    assert not rows["H3 ff2 matmul", "1 - PCC"].close
    assert rows["H3 ff2 matmul", "1 - PCC"].explained
    assert rows["VSA attention, sparsity 0.9", "1 - PCC"].close is None
    assert loads("numerics published", document(table))["close"] == 2
    assert "| H3 ff2 matmul |" in report.published_text(table)


def test_a_block_of_h3_is_as_far_off_as_published():
    error = minimax_h3.one_block()
    assert 1.6e-6 < error.one_minus_pcc < 1.6e-5
    assert error.gain == pytest.approx(1.0, abs=2e-3)


def test_the_command_reads_a_record_without_a_model(tmp_path):
    (tmp_path / "a.csv").write_text("name,pcc\nnorm,0.99999\n")
    printed = CliRunner().invoke(app, ["numerics", "ingest", str(tmp_path), "--json"])
    assert loads("numerics ingest", printed.stdout)["pcc"][0]["name"] == "norm"


def test_the_command_needs_something_to_judge():
    outcome = CliRunner().invoke(app, ["numerics", "judge", "sd35_tiny"])
    assert isinstance(outcome.exception, UserError)
    assert "give --pcc 0.9961" in outcome.exception.with_flags
