"""A tiny Qwen-Image pipeline saved by diffusers: prompt in, picture out, on a mesh, against diffusers' own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus
from PIL import Image

from parity.kinds.cpu.pipeline import frames_and_steps
from refsim.api.images import generate_images
from refsim.base.errors import UserError
from refsim.pipelines.hosts import qwenimage_edit
from refsim.pipelines.hosts.qwenimage import QwenImageHost
from refsim.pipelines.request import PipelineRequest
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.qwenimage_pipeline import make_edit_pipeline, make_pipeline

REQUEST = PipelineRequest(
    "a cat runs over green hills", "slow dog", steps=3, guidance=4.0, height=48, width=64, seed=7, max_text=40
)
AREAS = {"CONDITION_IMAGE_SIZE", "VAE_IMAGE_SIZE", "_READ_AREA", "_DRAWN_AREA"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pipe = make_pipeline()
    folder = tmp_path_factory.mktemp("qwenimage")
    pipe.save_pretrained(folder)
    return folder, pipe


@pytest.mark.parametrize(
    ("mesh", "parallel", "guidance"),
    [("t3k", "cfg2_sp2_tp2", 4.0), ("n300", "sp2", 4.0), ("n300", "tp2", 1.0)],
    ids=["cfg", "fused", "unguided"],
)
def test_equals_diffusers(tiny, mesh, parallel, guidance):
    """The prompts differ in length, and a token's guided prediction is as long as the positive one."""
    folder, pipe = tiny
    request = replace(REQUEST, guidance=guidance)
    check(generate_images(folder, request, mesh=mesh, parallel=parallel), *frames_and_steps(pipe, request))


def check(found, picture, steps):
    assert found.replicas_equal
    assert not found.hazards
    for ours, theirs in zip(found.steps, steps, strict=True):
        assert relative_rmse(ours, theirs) <= 5e-6
    assert (found.pixels - picture).abs().max() <= 1
    error = (found.pixels.double() - picture).square().mean()
    assert error == 0 or 10 * torch.log10(255**2 / error) > 60
    assert picture.float().std() > 10  # a picture, not a flat grey


@pytest.fixture(scope="module")
def edit(tmp_path_factory):
    """The pipeline in diffusers, its folder, and two pictures that differ in shape."""
    pipe = make_edit_pipeline()
    folder = tmp_path_factory.mktemp("edit")
    pipe.save_pretrained(folder)
    pipe.processor.save_pretrained(folder / "processor")
    pictures = [folder / f"{width}.png" for width in (40, 72)]
    for path, width in zip(pictures, (40, 72), strict=True):
        pixels = torch.randint(256, (56, width, 3), generator=torch.Generator().manual_seed(width), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
    return folder, pipe, pictures


@pytest.mark.parametrize(("mesh", "parallel", "guidance"), [("t3k", "cfg2_sp2_tp2", 4.0), ("n300", "sp2", 1.0)])
def test_an_edit_equals_diffusers(edit, monkeypatch, mesh, parallel, guidance):
    """Pictures stand behind the one that is made, modulated by time step 0, and are read with the prompt."""
    folder, pipe, paths = edit
    for module in (pipeline_qwenimage_edit_plus, qwenimage_edit):
        for name in AREAS & vars(module).keys():
            monkeypatch.setattr(module, name, 64 * 64)
    request = replace(REQUEST, guidance=guidance, max_text=None, images=tuple(paths))
    sizes = QwenImageHost().sizes(folder, replace(request, height=None, width=None))
    assert (sizes.width, sizes.height) == pipeline_qwenimage_edit_plus.calculate_dimensions(1024 * 1024, 72 / 56)
    picture, steps = frames_and_steps(pipe, request)
    check(generate_images(folder, request, mesh=mesh, parallel=parallel), picture, steps)


def test_pictures_that_cannot_be_edited(edit, tiny, tmp_path):
    request = replace(REQUEST, max_text=None)
    with pytest.raises(UserError, match="give at least one to start from"):
        generate_images(edit[0], request, mesh="n150", parallel="sp1")
    with pytest.raises(UserError, match="leave out the pictures"):
        generate_images(tiny[0], replace(request, images=("a.png",)), mesh="n150", parallel="sp1")
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(UserError, match="no picture that can be read"):
        generate_images(edit[0], replace(request, images=(str(tmp_path / "a.png"),)), mesh="n150", parallel="sp1")
    with pytest.raises(UserError, match="leave out max_text"):
        generate_images(edit[0], replace(REQUEST, images=edit[2]), mesh="n150", parallel="sp1")


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"height": 44}, "16x16"), ({"frames": 5}, "one frame"), ({"max_text": 1025}, "at most 1024")],
    ids=["size", "frames", "text"],
)
def test_requests_that_do_not_fit(tiny, changes, word):
    with pytest.raises(UserError, match=word):
        generate_images(tiny[0], replace(REQUEST, **changes), mesh="n150", parallel="sp1")
