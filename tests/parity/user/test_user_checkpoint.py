"""``--check-against diffusers``: a folder and inputs of one's own, judged as a parity case is."""

from __future__ import annotations

import importlib.util
import re

import pytest
from safetensors.torch import save_file

from parity.kinds.cpu import transformer
from parity.user import user_checkpoint
from refsim import api
from refsim.api.images import generate_images
from refsim.cli import process
from refsim.cli.commands import pipeline
from tests.json_output import loads
from tests.refsim.tiny.sd3_pipeline import make_pipeline
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

FAULT = "parity.faults.ref_model:bias_forgotten"


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("user_checkpoint")
    save(make_model(), folder / "model")
    save_file(make_inputs(), folder / "in.safetensors")
    given = ["--inputs", str(folder / "in.safetensors"), "--out", str(folder / "out.safetensors")]
    return ["run", str(folder / "model"), *given, "--mesh", "n300", "--parallel", "tp2", "--check-against", "diffusers"]


def test_a_checkpoint_of_ones_own_passes(words, capsys):
    assert process.run_command([*words, "--json", "--guidance", "3"]) == 0
    found = loads("run", capsys.readouterr().out)["check_against"]
    assert found["passed"] and found["against"] == "SD3Transformer2DModel of diffusers"
    assert {"rel_rmse", "layer_rel_rmse", "guided_rel_rmse", "distinct_replicas"} <= found["metrics"].keys()
    assert all(0 <= metric["value"] <= metric["bound"] for metric in found["metrics"].values())
    assert "layer_rel_rmse" not in found["not_measured"]


def test_what_is_not_measured_in_a_large_folder_is_said(words, capsys, monkeypatch):
    monkeypatch.setattr(user_checkpoint, "_SMALL_BYTES", 0)
    assert process.run_command(words) == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("not measured: "))
    assert "layer_rel_rmse" in said


def test_weights_of_ones_own_stay_as_they_are_for_a_large_latent(words, capsys, monkeypatch):
    """Cases of parity take weights that bf16 has there; a folder's own are those that both run on."""
    monkeypatch.setattr(transformer, "LARGE_LATENT", 1)
    assert process.run_command(words) == 0, capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_mistake_in_a_layer_fails_and_is_placed(words, capsys, monkeypatch, dtype):
    run = api.run
    monkeypatch.setattr(api, "run", lambda *a, options, **more: run(*a, options=options.but(fault=FAULT), **more))
    assert process.run_command([*words, "--dtype", dtype]) == 1
    shown = capsys.readouterr().out
    assert f"check against SD3Transformer2DModel of diffusers, {dtype}: failed" in shown
    assert "rel_rmse" in shown and " is above " in shown
    assert "transformer_blocks.0" in shown and "looks like: " in shown  # the explanation of a failing case
    assert "again:" not in shown


def test_a_library_that_is_not_installed_is_named(words, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        user_checkpoint.importlib.util, "find_spec", lambda name: None if name == "diffusers" else find(name)
    )
    assert process.run_command(words) == 2
    assert "needs diffusers, which is not installed; pip install 'refsim[oracle]'." in capsys.readouterr().err


def test_a_pipeline_of_ones_own_is_judged_step_by_step(tmp_path, capsys, monkeypatch):
    make_pipeline().save_pretrained(tmp_path / "pipe")
    command = ["run", str(tmp_path / "pipe"), "--prompt", "a cat", "--steps", "2", "--guidance", "4"]
    command += [
        "--height",
        "48",
        "--width",
        "64",
        "--out",
        str(tmp_path / "out"),
        "--mesh",
        "n300",
        "--parallel",
        "tp2",
    ]
    command += ["--check-against", "diffusers"]
    known = []
    monkeypatch.setattr(pipeline, "generate_images", lambda *a, **k: known.append(generate_images(*a, **k)) or known[0])
    assert process.run_command([*command, "--json"]) == 0
    found = loads("run", capsys.readouterr().out)["check_against"]
    assert len(found["step_rel_rmse"]) == 2 and max(found["step_rel_rmse"]) == found["metrics"]["rel_rmse"]["value"]
    assert 0 < found["metrics"]["rel_rmse"]["value"] <= found["metrics"]["rel_rmse"]["bound"]
    known[0].steps[1] *= 1 + 1e-4
    monkeypatch.setattr(pipeline, "generate_images", lambda *_, **__: known[0])
    assert process.run_command(command) == 1
    shown = capsys.readouterr().out
    assert float(re.search(r"step   1  rel_rmse (\S+)", shown)[1]) == pytest.approx(1e-4, rel=0.05)
    assert " is above 5e-06" in shown
