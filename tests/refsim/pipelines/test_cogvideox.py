"""A tiny CogVideoX pipeline saved by diffusers: prompt in, frames out, on a mesh, against diffusers' own run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity.kinds.cpu.pipeline import frames_and_steps
from refsim.api.images import generate_images
from refsim.base.errors import UserError
from refsim.pipelines.request import PipelineRequest
from tests.refsim.helpers import assert_steps_agree, relative_rmse
from tests.refsim.tiny.cogvideox_pipeline import make_pipeline

REQUEST = PipelineRequest(
    "a cat runs over green hills", "slow dog", steps=2, guidance=6.0, height=64, width=96, frames=9, seed=7, max_text=13
)


@pytest.fixture(scope="module")
def tiny(request, tmp_path_factory):
    """(folder, diffusers' 8-bit frames, its latents after every step)."""
    from diffusers import CogVideoXDPMScheduler

    changes = {"5b-dpm": {"scheduler": CogVideoXDPMScheduler()}, "1.5-ddim": {"patch_size_t": 2}}
    pipe = make_pipeline(request.param != "2b-ddim", **changes.get(request.param, {}))
    folder = tmp_path_factory.mktemp("cogvideox")
    pipe.save_pretrained(folder)
    return folder, *frames_and_steps(pipe, REQUEST)


USP = {"parallel": "sp8", "attention": "usp", "ring": 2, "ulysses": 4}


@pytest.mark.parametrize(
    ("tiny", "prompt", "how"),
    [
        ("2b-ddim", "split", USP),
        ("5b-dpm", "replicated", USP),
        ("1.5-ddim", "replicated", {"parallel": "cfg2_sp2_tp2"}),
    ],
    ids=["2b-ddim-split", "5b-dpm-replicated", "1.5-ddim-cfg"],
    indirect=["tiny"],
)
def test_equals_diffusers(tiny, prompt, how):
    folder, frames, steps = tiny
    found = generate_images(folder, REQUEST, mesh="t3k", prompt_layout=prompt, **how)
    assert any("neighbor_pad" in name for name in found.bytes_by_collective), "the decoder is cut in space"
    # only a prompt that is whole everywhere is taken by head and its answer gathered
    by_head = "ulysses/all_gather@ulysses" in found.bytes_by_collective
    assert by_head == (prompt == "replicated" and "ulysses" in how)
    assert found.replicas_equal
    assert not found.hazards
    for ours, theirs in zip(found.steps, steps, strict=True):
        assert relative_rmse(ours, theirs) <= 5e-6
    assert found.pixels.shape == frames.shape
    assert (found.pixels - frames).abs().max() <= 1
    assert frames.float().std() > 10  # a picture, not a flat grey


@pytest.mark.parametrize("tiny", ["5b-dpm"], indirect=True)
def test_the_command_checks(tiny, tmp_path, capsys):
    from refsim.cli import process

    words = ["run", str(tiny[0]), "--mesh", "t3k", "--parallel", "sp8", "--attention", "usp", "--ring", "2"]
    words += [
        "--ulysses",
        "4",
        "--prompt-layout",
        "split",
        "--prompt",
        "a dog",
        "--check",
        "--out",
        str(tmp_path / "o"),
    ]
    sizes = ["--height", "64", "--width", "96", "--frames", "5", "--max-text", "13", "--steps", "2"]
    assert process.run_command([*words, *sizes]) == 0
    said = capsys.readouterr().out
    assert_steps_agree(said, 2)
    assert (tmp_path / "o" / "frame_0004.png").exists()


def test_requests_and_folders_that_do_not_fit(tmp_path):
    from diffusers import FlowMatchEulerDiscreteScheduler

    make_pipeline(False, scheduler=FlowMatchEulerDiscreteScheduler()).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="CogVideoXDPMScheduler are supported"):
        generate_images(tmp_path, REQUEST, mesh="n300", parallel="sp2")
    folder = tmp_path / "ddim"
    make_pipeline(False).save_pretrained(folder)
    for changes, word in (({"height": 40}, "16x16"), ({"frames": 6}, "such as 5"), ({"guidance_2": 2.0}, "guidance_2")):
        with pytest.raises(UserError, match=word):
            generate_images(folder, replace(REQUEST, **changes), mesh="n300", parallel="sp2")
