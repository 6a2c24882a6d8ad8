"""A tiny CogVideoX pipeline saved by diffusers: prompt in, frames out, on a mesh, against diffusers' own run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from refsim.errors import UserError
from refsim.generate import generate
from refsim.pipelines.request import PipelineRequest
from tests.refsim.models.test_cogvideox import make_model
from tests.refsim.models.tiny_sd35 import relative_rmse
from tests.refsim.models.tiny_text import make_encoder, make_tokenizer

REQUEST = PipelineRequest(
    "a cat runs over green hills", "slow dog", steps=2, guidance=6.0, height=64, width=96, frames=5, seed=7, max_text=13
)


def make_pipeline(rotary: bool, **changes):
    from diffusers import AutoencoderKLCogVideoX, CogVideoXDDIMScheduler, CogVideoXPipeline

    torch.manual_seed(3)
    vae = AutoencoderKLCogVideoX(
        block_out_channels=(8, 8, 8, 8),
        latent_channels=16,
        layers_per_block=1,
        norm_num_groups=4,
        temporal_compression_ratio=4,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
    ).eval()
    parts = {
        "tokenizer": make_tokenizer(),
        "text_encoder": make_encoder("t5", d_model=32),
        "vae": vae,
        "transformer": make_model(rotary),
        "scheduler": CogVideoXDDIMScheduler(),
    }
    pipe = CogVideoXPipeline(**{**parts, **changes})
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("rotary", [False, True], ids=["2b", "5b"])
def test_equals_diffusers(tmp_path, rotary):
    pipe = make_pipeline(rotary)
    pipe.save_pretrained(tmp_path)
    request = REQUEST
    steps = []

    def keep(pipe, index, t, tensors):
        steps.append(tensors["latents"].clone())
        return {}

    images = pipe(
        request.prompt,
        request.negative_prompt,
        height=request.height,
        width=request.width,
        num_frames=request.frames,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance,
        generator=torch.Generator().manual_seed(request.seed),
        max_sequence_length=request.max_text,
        callback_on_step_end=keep,
        output_type="np",
    ).frames[0]
    frames = (torch.from_numpy(images) * 255).round().to(torch.int16)
    found = generate(tmp_path, request, mesh="t3k", parallel="sp8", attention="usp", ring=2, ulysses=4, check=rotary)
    assert "not parallel" in found.notes["decoder"]
    assert found.replicas_equal
    for ours, theirs in zip(found.steps, steps, strict=True):
        assert relative_rmse(ours, theirs) <= 5e-6
    assert found.pixels.shape == frames.shape
    assert (found.pixels - frames).abs().max() <= 1
    assert not found.check or found.check.passed


def test_requests_and_folders_that_do_not_fit(tmp_path):
    from diffusers import CogVideoXDPMScheduler

    make_pipeline(False, scheduler=CogVideoXDPMScheduler()).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="CogVideoXDDIMScheduler is supported"):
        generate(tmp_path, REQUEST, mesh="n300", parallel="sp2")
    folder = tmp_path / "ddim"
    make_pipeline(False).save_pretrained(folder)
    for changes, word in (({"height": 40}, "16x16"), ({"frames": 6}, "such as 5"), ({"guidance_2": 2.0}, "guidance-2")):
        with pytest.raises(UserError, match=word):
            generate(folder, replace(REQUEST, **changes), mesh="n300", parallel="sp2")
