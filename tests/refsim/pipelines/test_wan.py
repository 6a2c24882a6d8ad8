"""A tiny Wan pipeline saved by diffusers: prompt in, frames out, on a mesh, against diffusers' own run."""

from __future__ import annotations

import importlib.util
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from parity.kinds.cpu.pipeline import frames_and_steps
from refsim.api.images import Check, generate_images
from refsim.base.errors import UserError
from refsim.pipelines.request import PipelineRequest
from tests.refsim.helpers import assert_steps_agree, relative_rmse
from tests.refsim.tiny.text import make_encoder
from tests.refsim.tiny.wan_pipeline import make_pipeline

REQUEST = PipelineRequest(
    "a cat runs over green hills",
    "slow dog",
    steps=3,
    guidance=3.5,
    guidance_2=2.0,
    height=64,
    width=96,
    frames=5,
    seed=7,
    max_text=40,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, diffusers' 8-bit frames, its latents after every step)."""
    pipe, folder = make_pipeline(), tmp_path_factory.mktemp("wan")
    pipe.save_pretrained(folder)
    return folder, *frames_and_steps(pipe, REQUEST)


def test_equals_diffusers(tiny):
    folder, frames, steps = tiny
    found = generate_images(folder, REQUEST, mesh="t3k", parallel="cfg2_sp2_tp2", check=True)
    assert set(found.notes["experts"]) == {"transformer", "transformer_2"}
    assert found.replicas_equal
    assert not found.hazards
    for ours, theirs in zip(found.steps, steps, strict=True):
        assert relative_rmse(ours, theirs) <= 5e-6
    assert found.pixels.shape == frames.shape
    assert (found.pixels - frames).abs().max() <= 1
    assert len(found.check.step_pcc) == REQUEST.steps
    assert min(found.check.step_pcc) > 1 - 1e-9
    assert found.check.passed


def test_a_lora_of_each_expert_equals_diffusers_with_merged_weights(tiny, tmp_path):
    folder, _, before = tiny
    pipe, module, generator = make_pipeline(), "blocks.0.attn1.to_q", torch.Generator().manual_seed(5)
    for name, scale in (("transformer", 0.5), ("transformer_2", 1.0)):
        weight = pipe.components[name].get_submodule(module).weight
        down, up = (torch.randn(n, generator=generator) for n in ((2, weight.shape[1]), (weight.shape[0], 2)))
        keys = {f"transformer.{module}.lora_{half}.weight": x for half, x in (("A", down), ("B", up))}
        save_file(keys, tmp_path / f"{name}.safetensors")
        with torch.no_grad():
            weight += scale * up @ down
    frames, steps = frames_and_steps(pipe, REQUEST)
    lora = [f"{tmp_path}/transformer.safetensors:0.5", f"transformer_2={tmp_path}/transformer_2.safetensors"]
    found = generate_images(folder, REQUEST, mesh="n300", parallel="tp2", lora=lora)
    assert all(relative_rmse(ours, theirs) <= 5e-6 for ours, theirs in zip(found.steps, steps, strict=True))
    assert (found.pixels - frames).abs().max() <= 1
    assert min(relative_rmse(a, b) for a, b in zip(before, steps, strict=True)) > 1e-4  # both experts are changed


def test_one_expert_flow_match_and_no_guidance(tmp_path):
    from diffusers import FlowMatchEulerDiscreteScheduler

    pipe = make_pipeline(scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0), transformer_2=None, boundary_ratio=None)
    pipe.save_pretrained(tmp_path)
    request = replace(REQUEST, guidance=1.0, guidance_2=None, height=32, width=48, frames=5, steps=3)
    frames, _ = frames_and_steps(pipe, request)
    with pytest.raises(UserError, match="leave out guidance_2"):
        generate_images(tmp_path, replace(request, guidance_2=2.0), mesh="n300", parallel="sp2")
    found = generate_images(tmp_path, request, mesh="n300", parallel="sp2")
    assert found.notes["experts"] == ["transformer"] * 3
    assert (found.pixels - frames).abs().max() <= 1


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"height": 72}, "16x16"),
        ({"frames": 10}, "such as 9"),
        ({"guidance": 1.0}, "cfg2 needs guidance"),
        ({"steps": 0}, "steps is 1"),
    ],
    ids=str,
)
def test_requests_that_do_not_fit(tiny, changes, word):
    with pytest.raises(UserError, match=word):
        generate_images(tiny[0], replace(REQUEST, **changes), mesh="t3k", parallel="cfg2_sp2_tp2")


def test_a_video_is_not_decoded_by_channel(tiny):
    with pytest.raises(UserError, match="leave out vae_parallel"):
        generate_images(tiny[0], REQUEST, mesh="t3k", parallel="sp2_tp4", vae_parallel="tensor")


def test_the_prompt_is_not_split(tiny):
    with pytest.raises(UserError, match="leave out prompt_layout split"):
        generate_images(tiny[0], REQUEST, mesh="t3k", parallel="sp2_tp4", prompt_layout="split")


@pytest.mark.parametrize("part", ["text_encoder", "vae", "transformer_2", "tokenizer", "scheduler"])
def test_a_part_that_is_missing(tiny, tmp_path, part):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in tiny[0].iterdir():
        if path.name != part:
            (folder / path.name).symlink_to(path)
    with pytest.raises(UserError, match=part):
        generate_images(folder, REQUEST, mesh="n300", parallel="tp2")


def test_parts_that_do_not_belong_together(tiny, tmp_path):
    pipe = make_pipeline(text_encoder=make_encoder("umt5", d_model=32))
    pipe.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="text_dim 24 in transformer but d_model of text_encoder is 32"):
        generate_images(tmp_path, REQUEST, mesh="n300", parallel="tp2")


def test_a_part_of_another_class(tiny, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in tiny[0].iterdir():
        (folder / path.name).symlink_to(tiny[0] / "vae" if path.name == "text_encoder" else path)
    with pytest.raises(UserError, match="has a AutoencoderKLWan as text_encoder; it needs a T5Encoder"):
        generate_images(folder, REQUEST, mesh="n300", parallel="tp2")


def test_what_a_check_lets_pass():
    assert Check([1.0, 0.9999], 5, exact=False).passed
    assert not Check([1.0, 0.9999], 0, exact=True).passed
    assert not Check([1.0, 1.0], 2, exact=True).passed
    assert not Check([1.0, 0.999], 0, exact=False).passed
    assert not Check([1.0, float("nan")], 0, exact=False).passed


def test_a_pipeline_of_another_kind(tmp_path):
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "HunyuanVideoPipeline"}))
    with pytest.raises(UserError, match="HunyuanVideoPipeline"):
        generate_images(tmp_path, REQUEST, mesh="n300", parallel="tp2")


def test_the_command_writes_pictures_and_checks_every_step(tiny, tmp_path, capsys, monkeypatch):
    import av
    from PIL import Image

    from refsim.cli import process

    words = ["run", str(tiny[0]), "--mesh", "t3k", "--parallel", "sp2_tp4", "--out", str(tmp_path / "pictures")]
    sizes = ["--height", "32", "--width", "48", "--frames", "5", "--max-text", "8", "--steps", "2"]
    monkeypatch.setattr("sys.stdin", io.StringIO("a cat\nq\n"))
    assert process.run_command([*words, *sizes, "--interactive", "--check"]) == 0
    said, told = capsys.readouterr()
    assert_steps_agree(said, 2)
    assert "step 2 of 2" in told
    assert "check against one process: passed" in said
    with Image.open(tmp_path / "pictures" / "000" / "frame_0004.png") as image:
        assert image.size == (48, 32)
    with Image.open(tmp_path / "pictures" / "000" / "video.gif") as video:
        assert video.n_frames == 5
        last = np.asarray(Image.open(tmp_path / "pictures" / "000" / "frame_0004.png"), dtype=float)
    with av.open(tmp_path / "pictures" / "000" / "video.mp4") as video:
        assert video.streams.video[0].average_rate == 16
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == 5
    assert np.corrcoef(frames[4].mean(-1).ravel(), last.mean(-1).ravel())[0, 1] > 0.9
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert process.run_command([*words, *sizes, "--prompt", "x"]) == 2
    assert "PyAV" in capsys.readouterr().err
    assert process.run_command([*words, *sizes]) == 2
    assert "--prompt" in capsys.readouterr().err
