"""``refsim run`` on a ttnn backend, as the README has it: from a folder to a file, values as refsim's own."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from parity.cases import ModelShape
from parity.cases.checkpoints import MODELS
from parity.cases.inputs import decoder_inputs, model_inputs
from parity.cases.model_folders import load_oracle
from parity.cases.oracles import oracle_of
from parity.cases.store import CheckpointStore
from parity.cases.suites import suite_cases
from parity.measure.metrics import one_minus_pcc, rel_rmse
from tests import warm
from tests.json_output import loads

CASE = next(case for case in suite_cases("smoke", "ttnn-mock") if case.id == "sd35_tiny64-n300-cfg2-ring-bf16")


def refsim(*words: object) -> subprocess.CompletedProcess:
    return warm.run("-m", "refsim", *words, timeout=300)


def test_run_on_the_mock_mesh(tmp_path):
    with CheckpointStore() as store:
        folder = store.folder(CASE.model, 0)
        config = json.loads((folder / "config.json").read_text())
        dims = config["joint_attention_dim"], config["pooled_projection_dim"]
        save_file(model_inputs(CASE.shape, *dims, "normal", 0), tmp_path / "in.safetensors")
        words = ["run", folder, "--mesh", "bh-qb", "--parallel", "cfg2_tp2", "--guidance", 4.5]
        words += ["--inputs", tmp_path / "in.safetensors", "--dtype", "bf16"]
        device, trace = tmp_path / "device.safetensors", tmp_path / "trace.jsonl"
        done = refsim(*words, "--backend", "ttnn-mock", "--out", device, "--trace", trace, "--json")
        assert done.returncode == 0, done.stderr
        summary = loads("run", done.stdout)
        assert summary["backend"] == "ttnn-mock" and summary["operations"] == len(trace.read_text().splitlines())
        done = refsim(*words, "--out", tmp_path / "cpu.safetensors", "--json")
        assert done.returncode == 0, done.stderr
        assert [one["what"] for one in summary["padded"]] == ["heads"]
        assert summary["padded"] == loads("run", done.stdout)["padded"], "both backends pad alike, and say so"
    ours, theirs = load_file(device), load_file(tmp_path / "cpu.safetensors")
    assert ours.keys() == theirs.keys() == {"sample", "guided"}
    for name, value in theirs.items():
        assert rel_rmse(ours[name].float(), value.float()) == pytest.approx(0, abs=0.05)


def test_a_text_encoder(tmp_path):
    """Its results have the names that refsim gives them and the values that transformers computes."""
    case = next(case for case in suite_cases("smoke", "ttnn-mock") if case.id == "clip_g_tiny64-n300-tp2-heads-bf16")
    model, out = MODELS[case.model], tmp_path / "out.safetensors"
    inputs = oracle_of(model.class_name).text_inputs(model.config, case.shape, 0)
    save_file(inputs, tmp_path / "in.safetensors")
    with CheckpointStore() as store:
        folder = store.folder(case.model, 0)
        words = ["run", folder, "--mesh", "n300", "--parallel", "tp2", "--backend", "ttnn-mock", "--dtype", "bf16"]
        done = refsim(*words, "--inputs", tmp_path / "in.safetensors", "--out", out)
        with torch.inference_mode():
            wanted = load_oracle(folder, torch.float32)(**inputs, output_hidden_states=True)
    assert done.returncode == 0, done.stderr
    found = load_file(out)
    assert found.keys() == {"sample", "sequence"}
    assert one_minus_pcc(found["sample"].float(), wanted.text_embeds) <= 5e-4
    assert one_minus_pcc(found["sequence"].float(), wanted.hidden_states[-2]) <= 5e-4


def test_a_decoder_cut_by_channel(tmp_path):
    """An autoencoder runs like a transformer, cut as ``--vae-parallel`` says, which a transformer cannot be."""
    with CheckpointStore() as store:
        save_file({"z": decoder_inputs(ModelShape((4, 5), 0, 1), 16, "normal", 0)["z"]}, tmp_path / "in.safetensors")
        words = ["--mesh", "n300", "--parallel", "tp2", "--dtype", "bf16", "--vae-parallel", "tensor"]
        words += ["--inputs", tmp_path / "in.safetensors"]
        for backend in ("ttnn-mock", "cpu"):
            out = ["--backend", backend, "--out", tmp_path / f"{backend}.safetensors"]
            done = refsim("run", store.folder("sd35_vae_tiny64", 0), *words, *out)
            assert done.returncode == 0, done.stderr
        done = refsim("run", store.folder(CASE.model, 0), *words, "--backend", "ttnn-mock", "--out", tmp_path / "no")
        assert done.returncode == 2 and "leave out --vae-parallel" in done.stderr
    ours, theirs = (load_file(tmp_path / f"{b}.safetensors")["sample"].float() for b in ("ttnn-mock", "cpu"))
    assert rel_rmse(ours, theirs) < 0.03
