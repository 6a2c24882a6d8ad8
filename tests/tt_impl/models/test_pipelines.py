"""``refsim run`` of a pipeline folder in TTNN: pictures, what it says of itself, and a part that is not there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from parity.cases.pipelines import PIPELINES
from parity.cases.store import CheckpointStore
from parity.cases.suites import registry
from refsim.base.errors import UserError
from refsim.models.registry import get
from tests.json_output import loads

NAME = "flux1_pipeline_tiny64"


@pytest.fixture(scope="module")
def folder():
    registry()
    with CheckpointStore() as store:
        yield store.folder(NAME, 0)


def refsim(folder, out, *more):
    asked = PIPELINES[NAME].request
    words = ["run", folder, "--prompt", asked.prompt, "--steps", 2, "--height", 32, "--width", 32, "--max-text", 24]
    words += ["--mesh", "n300", "--parallel", "sp2", "--backend", "ttnn-mock", "--out", out, *more]
    command = [sys.executable, "-m", "refsim", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_prompt_to_picture(folder, tmp_path):
    from PIL import Image

    done = refsim(folder, tmp_path / "out", "--check", "--json")
    assert done.returncode == 0, done.stderr
    said = loads("run", done.stdout)
    assert said["backend"] == "ttnn-mock" and said["check"]["passed"] and len(said["check"]["step_pcc"]) == 2
    assert "bf16" in said["check"]["against"] and min(said["check"]["step_pcc"]) < 1  # two programs, not one twice
    assert said["operations"] > 100 and said["bytes_by_collective"] and "golden values" in said["ran"]
    assert set(said["seconds"]) == {"encode", "denoise", "decode", "total"}
    assert said["dram_left"] == {"encode": 0, "denoise": 0, "decode": 0}  # every part is gone when its stage is over
    before, after = said["dram_of_experts"]["transformer"]
    assert before == 0 < after
    assert Image.open(said["files"][0]).size == (32, 32)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--dtype", "fp32"), "stores bf16"),
        (("--negative-prompt", "slow dog"), "has no negative prompt"),
        (("--ring-order", "gather"), "leave out --ring-order"),
    ],
    ids=["dtype", "negative", "order"],
)
def test_what_it_does_not_have(folder, tmp_path, more, sentence):
    done = refsim(folder, tmp_path / "out", *more)
    assert done.returncode == 2 and sentence in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_part_without_counterpart_is_named(folder, monkeypatch):
    """Before anything runs."""
    from tt_impl.pipelines import pipeline

    found = pipeline.find_pipeline(folder)
    found.check(folder)
    plain = pipeline.spec_of_checkpoint

    def without_t5(checkpoint):
        spec = plain(checkpoint)
        return replace(spec, ttnn=None) if spec.name == "t5" else spec

    monkeypatch.setattr(pipeline, "spec_of_checkpoint", without_t5)
    with pytest.raises(UserError, match="has a T5EncoderModel as text_encoder_2, which has no counterpart in TTNN"):
        found.check(folder)


def test_a_pipeline_without_counterpart_is_named(folder, monkeypatch):
    from tt_impl.pipelines import pipeline

    monkeypatch.setattr(pipeline, "by_pipeline", lambda name: replace(get("flux1"), ttnn_pipeline=None))
    with pytest.raises(UserError, match="which has no counterpart in TTNN"):
        pipeline.find_pipeline(folder)
