"""``refsim run`` on a ttnn backend, as the README has it: from a folder to a file, values as refsim's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from parity.inputs import model_inputs
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


def test_a_decoder_has_no_place_there(tmp_path):
    (tmp_path / "model").mkdir()
    words = ["run", tmp_path / "model", "--mesh", "n300", "--parallel", "tp2", "--backend", "ttnn-mock"]
    done = refsim(*words, "--vae-parallel", "tensor", "--inputs", tmp_path / "x", "--out", tmp_path / "y")
    assert done.returncode == 2 and "leave out --vae-parallel" in done.stderr
