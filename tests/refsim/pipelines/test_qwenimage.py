"""A tiny Qwen-Image pipeline saved by diffusers: prompt in, picture out, on a mesh, against diffusers' own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from refsim.api.images import generate_images
from refsim.base.errors import UserError
from refsim.pipelines.request import PipelineRequest
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.qwenimage_pipeline import make_pipeline

REQUEST = PipelineRequest(
    "a cat runs over green hills", "slow dog", steps=3, guidance=4.0, height=48, width=64, seed=7, max_text=40
)


def diffusers_picture(pipe, request):
    """(8-bit picture, latents after every step) of diffusers' own run."""
    steps = []

    def keep(pipe, index, t, tensors):
        steps.append(tensors["latents"].clone())
        return {}

    image = pipe(
        request.prompt,
        request.negative_prompt,
        true_cfg_scale=request.guidance,
        height=request.height,
        width=request.width,
        num_inference_steps=request.steps,
        generator=torch.Generator().manual_seed(request.seed),
        max_sequence_length=request.max_text,
        callback_on_step_end=keep,
        output_type="np",
    ).images[0]
    return (torch.from_numpy(image) * 255).round().to(torch.int16), torch.stack(steps)


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
    picture, steps = diffusers_picture(pipe, request)
    found = generate_images(folder, request, mesh=mesh, parallel=parallel)
    assert found.replicas_equal
    assert not found.hazards
    for ours, theirs in zip(found.steps, steps, strict=True):
        assert relative_rmse(ours, theirs) <= 5e-6
    assert (found.pixels[0] - picture).abs().max() <= 1
    error = (found.pixels[0].double() - picture).square().mean()
    assert error == 0 or 10 * torch.log10(255**2 / error) > 60
    assert picture.float().std() > 10  # a picture, not a flat grey


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"height": 44}, "16x16"), ({"frames": 5}, "one frame"), ({"max_text": 1025}, "at most 1024")],
    ids=["size", "frames", "text"],
)
def test_requests_that_do_not_fit(tiny, changes, word):
    with pytest.raises(UserError, match=word):
        generate_images(tiny[0], replace(REQUEST, **changes), mesh="n150", parallel="sp1")
