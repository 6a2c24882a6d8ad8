"""A tiny Flux pipeline saved by diffusers: prompt in, picture out, on a mesh, against diffusers' own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from parity.kinds.cpu.pipeline import frames_and_steps
from refsim.api.images import generate_images
from refsim.base.errors import UserError
from refsim.pipelines.hosts.flux import pack, positions, unpack
from refsim.pipelines.request import PipelineRequest
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.flux_pipeline import make_pipeline
from tests.refsim.tiny.text import make_encoder

REQUEST = PipelineRequest(
    "a cat runs over green hills", steps=3, guidance=2.5, height=48, width=64, seed=7, max_text=24
)


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    pipe, folder = make_pipeline(), tmp_path_factory.mktemp("flux")
    pipe.save_pretrained(folder)
    return folder, *frames_and_steps(pipe, REQUEST)


@pytest.mark.parametrize(
    ("mesh", "parallel", "more"),
    [
        ("t3k", "sp2_tp4", {"prompt_layout": "split"}),
        ("bh-qb", "sp2_tp2", {"vae_parallel": "tensor"}),
    ],
    ids=["ring", "bh"],
)
def test_equals_diffusers(dev, mesh, parallel, more):
    folder, picture, steps = dev
    found = generate_images(folder, REQUEST, mesh=mesh, parallel=parallel, check=parallel == "sp2_tp4", **more)
    assert found.replicas_equal
    assert not found.hazards
    for ours, theirs in zip(found.steps, steps, strict=True):
        assert relative_rmse(ours, theirs) <= 5e-6
    assert (found.pixels - picture).abs().max() <= 1
    assert picture.float().std() > 10  # a picture, not a flat grey
    if found.check:
        assert len(found.check.step_pcc) == REQUEST.steps
        assert found.check.passed


def test_schnell(tmp_path):
    """No guidance embedding, whatever the number; time steps that are not shifted; a step of its own."""
    pipe = make_pipeline(guidance_embeds=False)
    pipe.save_pretrained(tmp_path)
    for steps in (1, 4):
        request = replace(REQUEST, steps=steps, guidance=0.0)
        picture, latents = frames_and_steps(pipe, request)
        found = generate_images(tmp_path, request, mesh="n300", parallel="tp2")
        assert relative_rmse(found.steps[-1], latents[-1]) <= 5e-6
        assert (found.pixels - picture).abs().max() <= 1


@pytest.mark.parametrize(
    ("changes", "parallel", "word"),
    [
        ({"height": 44}, "sp2_tp4", "8x8"),
        ({"frames": 5}, "sp2_tp4", "one frame"),
        ({"negative_prompt": "dog"}, "sp2_tp4", "no negative prompt"),
        ({"max_text": 600}, "sp2_tp4", "at most 512"),
        ({}, "cfg2_sp2_tp2", "cfg2"),
    ],
    ids=str,
)
def test_requests_that_do_not_fit(dev, changes, parallel, word):
    with pytest.raises(UserError, match=word):
        generate_images(dev[0], replace(REQUEST, **changes), mesh="t3k", parallel=parallel)


def test_parts_that_do_not_belong_together(tmp_path):
    make_pipeline(text_encoder_2=make_encoder("t5", d_model=32)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="joint_attention_dim 24 in transformer but d_model of text_encoder_2 is 32"):
        generate_images(tmp_path, REQUEST, mesh="n300", parallel="tp2")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_image_seq_len": 256}, "make no line"),
        ({"base_shift": "much"}, "base_shift = 'much'; it must be a finite"),
    ],
    ids=str,
)
def test_a_scheduler_without_a_line(dev, tmp_path, changes, said):
    import shutil

    folder = shutil.copytree(dev[0], tmp_path / "copy")
    path = folder / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=said):
        generate_images(folder, REQUEST, mesh="n150", parallel="sp1")


def test_packing_is_undone():
    latent = torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6)
    tokens = pack(latent)
    assert tokens.shape == (2, 6, 12)
    assert torch.equal(unpack(tokens, 2, 3), latent)
    assert positions(2, 3).tolist() == [[0, r, c] for r in range(2) for c in range(3)]
