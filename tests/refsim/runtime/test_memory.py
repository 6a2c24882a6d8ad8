"""What the machine cannot hold is refused before anything of it is made, with the figure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from refsim.api.images import generate_images
from refsim.api.model import run
from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.pipelines.hosts.base import Sizes
from refsim.pipelines.request import PipelineRequest
from refsim.runtime import host_memory, launch
from tests.refsim.helpers import assert_one_sentence
from tests.refsim.tiny.sd3_pipeline import make_pipeline as make_sd3
from tests.refsim.tiny.wan_pipeline import make_pipeline as make_wan

REQUEST = PipelineRequest("a cat", steps=2, guidance=3.5, height=64, width=96, max_text=24)


@pytest.fixture(scope="module", params=[make_sd3, make_wan], ids=["sd3", "wan"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pipeline")
    request.param().save_pretrained(made)
    return made


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"height": 1_600_000_000}, "pixels"),
        ({"steps": 2**31 - 1, "height": 6400, "width": 9600}, "latents of every step"),
        ({"frames": 400_000_001, "height": 640, "width": 960}, "pixels"),
        ({"max_text": 2**31 - 1}, "attention of the prompt"),
    ],
    ids=["height", "steps", "frames", "text"],
)
def test_a_request_that_no_machine_holds(folder, monkeypatch, changes, named):
    """Refused before a number of noise is drawn and before a prompt is padded."""
    index = json.loads((folder / "model_index.json").read_text())
    if index["_class_name"] != "WanPipeline" and changes.keys() & {"frames", "max_text"}:
        pytest.skip("a picture has one frame, and this pipeline's prompts are short")
    monkeypatch.setattr(torch, "randn", None)
    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", None)
    with pytest.raises(UserError, match=rf"{named} [\d.]+ GB.*this machine has [\d.]+ GB") as caught:
        generate_images(folder, replace(REQUEST, **changes), mesh="n150")
    assert_one_sentence(str(caught.value))


def test_weights_that_the_machine_cannot_hold_converted(folder, monkeypatch):
    """A model alone is refused as well; of the dtype of the file its weights are views, and what is next is checked."""
    monkeypatch.setattr(host_memory, "total_bytes", lambda: 10_000)
    where = {"mesh": "n300", "parallel": "sp2"}
    with pytest.raises(UserError, match=r"on 2 rank\(s\) in bf16 .* weights [\d.]+ GB.*machine has") as caught:
        run(folder / "transformer", inputs={}, dtype="bf16", **where)
    assert_one_sentence(str(caught.value))
    with pytest.raises(UserError, match="lacks 'hidden_states'"):
        run(folder / "transformer", inputs={}, **where)


def test_what_fits_is_let_pass(monkeypatch):
    monkeypatch.setattr(host_memory, "total_bytes", lambda: 10**9)
    host_memory.check_fits("a run", {"a": 10**9}, instead="choose less")
    with pytest.raises(UserError, match=r"a run takes 1\.1 GB at least \(a 1\.0 GB, b 0\.1 GB\), .* has 1\.0 GB"):
        host_memory.check_fits("a run", {"a": 10**9, "b": 10**8}, instead="choose less")
    monkeypatch.setattr(host_memory, "total_bytes", lambda: None)
    host_memory.check_fits("a run", {"a": 10**30}, instead="choose less")


def test_the_least_that_a_run_takes():
    sizes = Sizes((1, 16, 4, 8), height=32, width=64, frames=2, tokens=10)
    assert sizes.least_bytes(3, 2, 2) == {
        "latents of every step": 3 * 4 * 512 * 2,
        "pixels": 3 * 2 * 2 * 32 * 64 * 2,
        "attention of the prompt": 4 * 100 * 2,
    }
    assert host_memory.total_bytes() is None or host_memory.total_bytes() > 2**28


def test_memory_is_asked_for_by_the_ranks_that_are_here(monkeypatch):
    """Not by those of other hosts, nor by devices that have memory of their own."""
    options = RunOptions.of(mesh="galaxy", parallel="sp8_tp4")
    assert launch.ranks_here(options) == 32
    assert launch.ranks_here(options.but(backend="ttnn-device", dtype="bf16")) == 1
    for name, value in {"RANK": "9", "WORLD_SIZE": "32", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "there"}.items():
        monkeypatch.setenv(name, value)
    assert launch.ranks_here(options) == 8
