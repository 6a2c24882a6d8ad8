"""diffusers objects of three families, unmodified, sequence-parallel under torchrun."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

import refsim
from refsim.base.errors import UserError
from refsim.parallel.sequence import TokenShards
from tests import warm
from tests.refsim.tiny.cogvideox import make_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Return (what every rank found, what was printed) of the worker and, in the same four processes, the example."""
    folder = tmp_path_factory.mktemp("parallelize")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command += ["-m", "tests.refsim.parallelize_worker", folder, ROOT / "examples" / "parallelize_sd3.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = warm.run(*command, cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "torchvision" not in done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)], done.stdout, folder


def test_every_rank_finds_the_same(ran):
    assert all(found == ran[0][0] for found in ran[0])


@pytest.mark.parametrize("family", ["sd3", "cogvideox_2b_transformer", "cogvideox", "wan"])
def test_the_answer_is_that_of_the_object_as_it_was(ran, family):
    found = ran[0][0][family]
    assert found["sample"] <= 5e-6
    assert found.get("pixels", 0) <= 1


def test_a_rank_computes_on_its_own_tokens(ran):
    assert ran[0][0]["cogvideox_2b_transformer"]["tokens"] == [TokenShards.of(72, 4).local_n]
    assert TokenShards.of(72, 4).local_n < 72


@pytest.mark.parametrize(
    ("case", "word"),
    [
        ("latents", "same seed"),
        ("backend", "set_attention_backend"),
        ("mask", "without mask"),
        ("twice", "parallelized already"),
    ],
)
def test_what_would_be_wrong_is_refused(ran, case, word):
    assert word in ran[0][0]["refused"][case]


def test_the_example_runs_and_checks(ran):
    _, said, folder = ran
    assert "picture of 24x40 over 4 ranks, ring2_ulysses2" in said
    assert said.count("largest difference of a pixel 0.0") == 4
    with Image.open(folder / "picture.png") as image:
        assert image.size == (40, 24)


def test_without_torchrun(monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="torchrun --nproc-per-node"):
        refsim.parallelize(object())


@pytest.mark.parametrize(
    ("parallel", "mesh", "word"),
    [
        ("ring3", None, "uses 3 devices .*; refsim.parallelize takes ring4, ulysses4, ulysses2_ring2 here.$"),
        ("ulysses3_ring2", None, "; refsim.parallelize takes ring4, ulysses4, ulysses2_ring2 here.$"),
        ("tp4", None, "sequence parallel"),
        ("ring4", "t3k", "8 devices"),
    ],
)
def test_factors_that_do_not_fit(monkeypatch, parallel, mesh, word):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=word):
        refsim.parallelize(make_model(rotary=False), parallel, mesh)


def test_another_class(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=r"WanTransformer3DModel.*, not Linear"):
        refsim.parallelize(torch.nn.Linear(1, 1))
