"""CogVideoX against diffusers: sincos and rotary, the prompt replicated and split, every scheme."""

from __future__ import annotations

import pytest

import refsim
from refsim.base.errors import UserError
from refsim.models.cogvideox.config import CogVideoXConfig
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.cogvideox import answer, make_inputs, make_model


@pytest.fixture(scope="module", params=[False, True], ids=["sincos", "rotary"])
def tiny(request, tmp_path_factory):
    model, folder = make_model(request.param), tmp_path_factory.mktemp("cogvideox")
    model.save_pretrained(folder)
    return folder, model, request.param


@pytest.mark.parametrize(
    ("mesh", "parallel", "options"),
    [
        ("n150", "sp1", {}),
        ("t3k", "sp2_tp4", {"attention": "ulysses"}),
        ("t3k", "cfg2_sp2_tp2", {"prompt_layout": "split"}),
    ],
    ids=["serial", "ulysses_tp4", "cfg"],
)
def test_equals_diffusers(tiny, mesh, parallel, options):
    folder, model, rotary = tiny
    inputs = make_inputs(13)  # an odd number of prompt tokens, 72 of video
    result = refsim.run(folder, inputs=inputs, mesh=mesh, parallel=parallel, **options)
    assert relative_rmse(result.tensors["sample"], answer(model, inputs, rotary)) <= 5e-6
    assert len(set(result.value["digests"])) == 1
    assert not result.hazards


def test_patches_two_frames_deep(tmp_path):
    """CogVideoX 1.5, in a size that is not the one its config names."""
    model = make_model(True, sample_width=20, sample_height=20, patch_size_t=2, patch_bias=False)
    model.save_pretrained(tmp_path)
    inputs = make_inputs(13, (4, 8, 12))
    how = {"attention": "usp", "ring": 2, "ulysses": 4, "prompt_layout": "split"}
    result = refsim.run(tmp_path, inputs=inputs, mesh="t3k", parallel="sp8", **how)
    assert relative_rmse(result.tensors["sample"], answer(model, inputs, True)) <= 5e-6
    with pytest.raises(UserError, match="does not divide into 2x2x2 patches"):
        refsim.run(tmp_path, inputs=make_inputs(13), mesh="t3k", parallel="sp8", **how)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"patch_size_t": 2}, "without use_rotary"),
        ({"patch_bias": False}, "only 1.5"),
        ({"ofs_embed_dim": 511}, "ofs_embed_dim = 511; .* must be null or time_embed_dim 512"),
        ({"patch_size_t": 0}, "whole number above 0"),
        ({"attention_head_dim": 24}, "multiple of 16"),
    ],
    ids=str,
)
def test_configs_that_are_refused(changes, word):
    with pytest.raises(UserError, match=word):
        CogVideoXConfig.from_dict(changes)


def test_another_size_than_the_trained_one(tiny):
    folder, model, rotary = tiny
    inputs = make_inputs(7, (2, 12, 8))
    if not rotary:
        model.patch_embed.max_text_seq_length = 7  # diffusers wants the text's length where it makes a new table
    result = refsim.run(folder, inputs=inputs, mesh="n300", parallel="sp2")
    expected = answer(model, inputs, rotary)
    model.patch_embed.max_text_seq_length = 13
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6


def test_latents_that_do_not_fit(tiny):
    with pytest.raises(UserError, match="2x2 patches"):
        refsim.run(tiny[0], inputs=make_inputs(13, (3, 7, 12)), mesh="n300", parallel="sp2")
