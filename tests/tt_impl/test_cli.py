"""``refsim run`` on a ttnn backend, as the README has it: from a folder to a file, values as refsim's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from parity.cases import ModelShape
from parity.inputs import decoder_inputs, model_inputs
from parity.metrics import rel_rmse
from parity.store import CheckpointStore
from parity.suites import suite_cases

CASE = next(case for case in suite_cases("smoke", "ttnn-mock") if case.id == "sd35_tiny64-n300-cfg2-ring-bf16")


def refsim(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "refsim", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_run_on_the_mock_mesh(tmp_path):
    with CheckpointStore() as store:
        folder = store.folder(CASE.model, 0)
        config = json.loads((folder / "config.json").read_text())
        dims = config["joint_attention_dim"], config["pooled_projection_dim"]
        save_file(model_inputs(CASE.shape, *dims, "normal", 0), tmp_path / "in.safetensors")
        words = ["run", folder, "--mesh", "n300", "--parallel", "cfg2", "--guidance", 4.5]
        words += ["--inputs", tmp_path / "in.safetensors", "--dtype", "bf16"]
        device, trace = tmp_path / "device.safetensors", tmp_path / "trace.jsonl"
        done = refsim(*words, "--backend", "ttnn-mock", "--out", device, "--trace", trace, "--json")
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert summary["backend"] == "ttnn-mock" and summary["operations"] == len(trace.read_text().splitlines())
        done = refsim(*words, "--out", tmp_path / "cpu.safetensors")
        assert done.returncode == 0, done.stderr
    ours, theirs = load_file(device), load_file(tmp_path / "cpu.safetensors")
    assert ours.keys() == theirs.keys() == {"sample", "guided"}
    for name, value in theirs.items():
        assert rel_rmse(ours[name].float(), value.float()) == pytest.approx(0, abs=0.05)


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
