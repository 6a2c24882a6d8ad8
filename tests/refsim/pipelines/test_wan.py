"""A tiny Wan pipeline saved by diffusers, run on a mesh, against diffusers' own run."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from refsim.config import parse_parallel
from refsim.launch import execute
from refsim.mesh import get_mesh
from tests.refsim.models.tiny_sd35 import relative_rmse
from tests.refsim.models.tiny_wan import CONFIG, make_model, make_vae

STEPS, GUIDANCE, GUIDANCE_2, TEXT = 4, 3.5, 2.0, 29
SIZE = {"height": 64, "width": 96, "num_frames": 9}


def make_pipeline(**changes):
    from diffusers import UniPCMultistepScheduler, WanPipeline

    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0)
    return WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=make_vae(),
        scheduler=scheduler,
        transformer=make_model(0),
        transformer_2=make_model(1),
        **{"boundary_ratio": 0.875, **changes},
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, inputs file, diffusers' 8-bit frames, its latents after every step)."""
    pipe, folder = make_pipeline(), tmp_path_factory.mktemp("wan")
    pipe.save_pretrained(folder)
    generator = torch.Generator().manual_seed(7)
    latents = torch.randn(1, 16, 3, 8, 12, generator=generator)
    prompts = torch.randn(2, TEXT, CONFIG["text_dim"], generator=generator)
    save_file({"latents": latents, "prompt_embeds": prompts}, folder / "inputs")
    steps = []

    def keep(pipe, index, t, tensors):
        steps.append(tensors["latents"].clone())
        return {}

    pipe.set_progress_bar_config(disable=True)
    video = pipe(
        negative_prompt_embeds=prompts[:1],
        prompt_embeds=prompts[1:],
        latents=latents.clone(),
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        guidance_scale_2=GUIDANCE_2,
        callback_on_step_end=keep,
        output_type="np",
        **SIZE,
    ).frames[0]
    return folder, pixels(torch.from_numpy(video)), torch.stack(steps)


def pixels(frames_01: torch.Tensor) -> torch.Tensor:
    return (frames_01 * 255).round().to(torch.int16)


@pytest.mark.parametrize(
    ("mesh", "parallel"), [("t3k", "sp2_tp4"), ("t3k", "cfg2_sp2_tp2"), ("galaxy", "sp8_tp4")], ids=str
)
def test_equals_diffusers(tiny, mesh, parallel):
    folder, frames, steps = tiny
    spec = get_mesh(mesh)
    arguments = {
        "folder": str(folder),
        "inputs": str(folder / "inputs"),
        "dtype": "float32",
        "steps": STEPS,
        "guidance": GUIDANCE,
        "guidance_2": GUIDANCE_2,
        "schedule": "step",
        "pad_heads": True,
        "chunks": (256, 512),
    }
    result = execute("refsim.pipelines.wan:program", spec, parse_parallel(parallel, spec), arguments)
    assert set(result.value["experts"]) == {"transformer", "transformer_2"}
    assert len({value["digest"] for value in result.values}) == 1
    assert not result.hazards
    got = result.tensors["steps"]
    assert got.shape == steps.shape
    for ours, theirs in zip(got, steps, strict=True):
        assert relative_rmse(ours, theirs) <= 2e-5
    ours = pixels((result.tensors["frames"][0].movedim(0, -1) / 2 + 0.5).clamp(0, 1))
    assert ours.shape == frames.shape
    assert (ours - frames).abs().max() <= 1
