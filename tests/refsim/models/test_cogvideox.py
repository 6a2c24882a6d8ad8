"""CogVideoX against diffusers: sincos and rotary, the prompt replicated and split, every scheme."""

from __future__ import annotations

import pytest
import torch

import refsim
from refsim.base.errors import UserError
from refsim.models.cogvideox.config import CogVideoXConfig
from tests.refsim.models.tiny_sd35 import relative_rmse


def make_model(rotary: bool, seed: int = 0, **changes):
    from diffusers import CogVideoXTransformer3DModel

    config = {
        "num_attention_heads": 3,
        "attention_head_dim": 16,
        "time_embed_dim": 12,
        "text_embed_dim": 32,
        "num_layers": 3,
        "sample_width": 12,
        "sample_height": 8,
        "sample_frames": 9,
        "max_text_seq_length": 13,
        "use_rotary_positional_embeddings": rotary,
    }
    model = CogVideoXTransformer3DModel(**{**config, **changes}).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm" in name and p.ndim == 1 and name.endswith("weight") and "linear" not in name
            p.normal_(1.0 if norm else 0.0, 0.2 if p.ndim == 1 else p[0].numel() ** -0.5, generator=generator)
    return model


def make_inputs(text: int, size=(3, 8, 12)) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    frames, height, width = size
    return {
        "hidden_states": torch.randn(2, frames, 16, height, width, generator=g),
        "encoder_hidden_states": torch.randn(2, text, 32, generator=g),
        "timestep": torch.tensor([700.0, 700.0]),
    }


def answer(model, inputs, rotary: bool) -> torch.Tensor:
    """diffusers' forward, rotary tables made by its pipeline's own code."""
    tables = None
    if rotary:
        from diffusers import CogVideoXPipeline

        frames, height, width = (inputs["hidden_states"].shape[i] for i in (1, 3, 4))
        pipe = CogVideoXPipeline.__new__(CogVideoXPipeline)
        pipe.transformer, pipe.vae_scale_factor_spatial = model, 1
        make = CogVideoXPipeline._prepare_rotary_positional_embeddings
        tables = make(pipe, height, width, frames, torch.device("cpu"))
    with torch.no_grad():
        return model(**inputs, image_rotary_emb=tables, return_dict=False)[0]


@pytest.fixture(scope="module", params=[False, True], ids=["sincos", "rotary"])
def tiny(request, tmp_path_factory):
    model, folder = make_model(request.param), tmp_path_factory.mktemp("cogvideox")
    model.save_pretrained(folder)
    return folder, model, request.param


@pytest.mark.parametrize("prompt", ["replicated", "split"])
@pytest.mark.parametrize(
    ("mesh", "parallel", "options"),
    [
        ("t3k", "sp8", {"attention": "usp", "ring": 2, "ulysses": 4}),
        ("t3k-1x8", "sp8", {}),
        ("t3k", "sp2_tp4", {"attention": "ulysses"}),
        ("t3k", "cfg2_sp2_tp2", {}),
        ("tg", "sp8_tp4", {}),
    ],
    ids=["usp", "ring8", "ulysses_tp4", "cfg", "tg"],
)
def test_equals_diffusers(tiny, mesh, parallel, options, prompt):
    folder, model, rotary = tiny
    inputs = make_inputs(13)  # an odd number of prompt tokens, 72 of video
    result = refsim.run(folder, inputs=inputs, mesh=mesh, parallel=parallel, prompt_layout=prompt, **options)
    assert relative_rmse(result.tensors["sample"], answer(model, inputs, rotary)) <= 5e-6
    assert len(set(result.value["digests"])) == 1
    assert not result.hazards


@pytest.mark.parametrize("prompt", ["replicated", "split"])
def test_patches_two_frames_deep(tmp_path, prompt):
    """CogVideoX 1.5, in a size that is not the one its config names."""
    model = make_model(True, sample_width=20, sample_height=20, patch_size_t=2, patch_bias=False)
    model.save_pretrained(tmp_path)
    inputs = make_inputs(13, (4, 8, 12))
    how = {"attention": "usp", "ring": 2, "ulysses": 4, "prompt_layout": prompt}
    result = refsim.run(tmp_path, inputs=inputs, mesh="t3k", parallel="sp8", **how)
    assert relative_rmse(result.tensors["sample"], answer(model, inputs, True)) <= 5e-6
    with pytest.raises(UserError, match="2 frames deep"):
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


def test_bf16_is_as_near_as_the_oracle(tiny):
    folder, model, rotary = tiny
    inputs = {k: x.bfloat16().float() if x.ndim > 1 else x for k, x in make_inputs(13).items()}
    result = refsim.run(folder, inputs=inputs, mesh="t3k", parallel="sp2_tp4", dtype="bf16")
    assert relative_rmse(result.tensors["sample"].float(), answer(model, inputs, rotary)) < 3e-2


def test_latents_that_do_not_fit(tiny):
    with pytest.raises(UserError, match="2x2 patches"):
        refsim.run(tiny[0], inputs=make_inputs(13, (3, 7, 12)), mesh="n300", parallel="sp2")
