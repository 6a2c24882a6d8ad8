"""diffusers objects of three families, unmodified, sequence-parallel under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import refsim
from refsim.errors import UserError
from tests.refsim.models.test_cogvideox import make_model

ROOT = Path(__file__).resolve().parents[2]


def torchrun(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_the_answer_is_that_of_the_object_as_it_was(tmp_path):
    done = torchrun("-m", "tests.refsim.parallelize_worker", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    by_rank = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert all(found == by_rank[0] for found in by_rank)
    for found in by_rank:
        refused = found.pop("refused")
        assert all(family["sample"] <= 5e-6 for family in found.values()), found
        assert found["sd3"]["pixels"] <= 1
        assert "same seed" in refused["latents"]
        assert "set_attention_backend" in refused["backend"]
        assert "without mask" in refused["mask"]
        assert "parallelized already" in refused["twice"]


def test_the_example_runs_and_checks():
    done = torchrun("examples/parallelize_sd3.py", "--check", "--parallel", "ring2_ulysses2")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "over 4 ranks" in done.stdout
    assert done.stdout.count("relative RMSE") == 4


def test_without_torchrun(monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="torchrun --nproc-per-node"):
        refsim.parallelize(object())


@pytest.mark.parametrize(
    ("parallel", "mesh", "word"),
    [("ring3", None, "uses 3 devices"), ("tp4", None, "sequence parallel"), ("ring4", "t3k", "8 devices")],
)
def test_factors_that_do_not_fit(monkeypatch, parallel, mesh, word):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=word):
        refsim.parallelize(make_model(rotary=False), parallel, mesh)


def test_another_class(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match="WanTransformer3DModel, not Linear"):
        refsim.parallelize(torch.nn.Linear(1, 1))
