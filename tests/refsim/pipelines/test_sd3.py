"""A tiny Stable Diffusion 3 pipeline saved by diffusers: prompt in, picture out, on a mesh, against diffusers' own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity.kinds.cpu.pipeline import frames_and_steps
from refsim.api.images import generate_images
from refsim.base.errors import UserError
from refsim.pipelines.request import PipelineRequest
from tests.refsim.helpers import assert_steps_agree, relative_rmse
from tests.refsim.tiny.sd3_pipeline import make_pipeline

REQUEST = PipelineRequest(
    "a cat runs over green hills", "slow dog", steps=3, guidance=4.5, height=48, width=64, seed=7, max_text=24
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pipe, folder = make_pipeline(), tmp_path_factory.mktemp("sd3")
    pipe.save_pretrained(folder)
    return folder, *frames_and_steps(pipe, REQUEST)


@pytest.mark.parametrize(
    ("mesh", "parallel", "more"),
    [("t3k", "sp2_tp4", {"prompt_layout": "split", "check": True}), ("t3k-1x8", "sp8", {})],
    ids=["split", "sp8"],
)
def test_equals_diffusers(tiny, mesh, parallel, more):
    folder, picture, steps = tiny
    found = generate_images(folder, REQUEST, mesh=mesh, parallel=parallel, **more)
    assert found.replicas_equal
    assert not found.hazards
    for ours, theirs in zip(found.steps, steps, strict=True):
        assert relative_rmse(ours, theirs) <= 5e-6
    assert found.pixels.shape == picture.shape
    assert (found.pixels - picture).abs().max() <= 1
    assert picture.float().std() > 10  # a picture, not a flat grey
    if found.check:
        assert len(found.check.step_pcc) == REQUEST.steps
        assert found.check.passed


def test_without_t5_and_without_guidance(tmp_path):
    """Its weights are of a variant, but for those of the autoencoder; diffusers takes such a folder as well."""
    pipe = make_pipeline(text_encoder_3=None, tokenizer_3=None)
    pipe.save_pretrained(tmp_path, variant="fp16")
    vae = tmp_path / "vae" / "diffusion_pytorch_model.fp16.safetensors"
    vae.rename(vae.with_name("diffusion_pytorch_model.safetensors"))
    request = replace(REQUEST, guidance=1.0, steps=2)
    picture, _ = frames_and_steps(pipe, request)
    found = generate_images(tmp_path, request, mesh="n300", parallel="tp2", variant="fp16")
    assert (found.pixels - picture).abs().max() <= 1
    with pytest.raises(UserError, match="weights of a variant only; give variant fp16"):
        generate_images(tmp_path, request, mesh="n300", parallel="tp2")
    with pytest.raises(UserError, match="no weights of variant ema"):
        generate_images(tmp_path, request, mesh="n300", parallel="tp2", variant="ema")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"height": 50}, "8x8"),
        ({"frames": 5}, "one frame"),
        ({"guidance_2": 2.0}, "one transformer"),
        ({"max_text": 600}, "at most 512"),
    ],
    ids=str,
)
def test_requests_that_do_not_fit(tiny, changes, word):
    with pytest.raises(UserError, match=word):
        generate_images(tiny[0], replace(REQUEST, **changes), mesh="t3k", parallel="cfg2_sp2_tp2")


def test_a_lora_of_a_part_that_is_not_there(tiny):
    with pytest.raises(UserError, match="lora is of transformer_2; this pipeline has transformer"):
        generate_images(tiny[0], REQUEST, mesh="n300", parallel="tp2", lora="transformer_2=x.safetensors")


def test_parts_that_do_not_belong_together(tmp_path):
    make_pipeline(text_encoder_3=make_encoder_of(32)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="joint_attention_dim 64 in transformer but d_model of text_encoder_3 is 32"):
        generate_images(tmp_path, REQUEST, mesh="n300", parallel="tp2")


def make_encoder_of(width):
    from tests.refsim.tiny.text import make_encoder

    return make_encoder("t5", d_model=width)


@pytest.mark.parametrize("vae_parallel", ["spatial", "tensor"])
def test_the_command_writes_a_picture(tiny, tmp_path, capsys, vae_parallel):
    from PIL import Image

    from refsim.cli import process

    words = ["run", str(tiny[0]), "--mesh", "t3k", "--parallel", "cfg2_sp2_tp2", "--out", str(tmp_path / "pictures")]
    more = ["--prompt", "a dog", "--height", "32", "--width", "32", "--max-text", "8", "--steps", "2", "--check"]
    assert process.run_command([*words, *more, "--vae-parallel", vae_parallel]) == 0
    said = capsys.readouterr().out
    assert_steps_agree(said, 2)
    with Image.open(tmp_path / "pictures" / "image.png") as image:
        assert image.size == (32, 32)
