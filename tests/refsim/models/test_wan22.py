"""The Wan transformer against diffusers."""

from __future__ import annotations

import pytest
import torch

import refsim
from refsim.base.errors import UserError
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.sd35 import save
from tests.refsim.tiny.wan import make_inputs, make_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, inputs, diffusers' answer)."""
    model, inputs = make_model(), make_inputs()
    with torch.no_grad():
        expected = model(**inputs, return_dict=False)[0]
    return save(model, tmp_path_factory.mktemp("tiny")), inputs, expected


@pytest.mark.parametrize(
    ("mesh", "parallel", "options"),
    [
        ("n150", "sp1", {}),
        ("t3k", "cfg2_sp4", {"attention": "ulysses"}),
        ("t3k-1x8", "sp8", {"ring_order": "block", "k_chunk_size": 24}),
    ],
    ids=["serial", "ulysses", "block"],
)
def test_equals_diffusers(tiny, mesh, parallel, options):
    folder, inputs, expected = tiny
    result = refsim.run(folder, inputs=inputs, mesh=mesh, parallel=parallel, **options)
    assert result.tensors["sample"].shape == expected.shape
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
    assert len(set(result.value["digests"])) == 1


def test_without_cross_attention_norm(tmp_path):
    model, inputs = (
        make_model(cross_attn_norm=False, num_layers=1, patch_size=(2, 2, 2)),
        make_inputs(batch=1, latent=(4, 4, 6)),
    )
    with torch.no_grad():
        expected = model(**inputs, return_dict=False)[0]
    result = refsim.run(save(model, tmp_path), inputs=inputs, mesh="n300", parallel="tp2")
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6


@pytest.mark.parametrize(
    "kind", [{"in_channels": 36}, {"in_channels": 36, "image_dim": 28, "added_kv_proj_dim": 60}, {"in_channels": 48}]
)
def test_image_to_video(kind, tmp_path):
    """A14B, 2.1 and TI2V-5B, whose time steps are the tokens' own."""
    model, inputs = make_model(num_layers=1, **kind), make_inputs(text=512)
    generator = torch.Generator().manual_seed(2)
    inputs["hidden_states"] = torch.randn(2, kind["in_channels"], 3, 8, 12, generator=generator)
    if "image_dim" in kind:
        inputs["encoder_hidden_states_image"] = torch.randn(2, 21, 28, generator=generator)
    if kind["in_channels"] == 48:
        inputs["timestep"] = inputs["timestep"][:, None] * torch.rand(2, 72, generator=generator)
    with torch.no_grad():
        expected = model(**inputs, return_dict=False)[0]
    result = refsim.run(save(model, tmp_path), inputs=inputs, mesh="n150", parallel="sp1")
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"added_kv_proj_dim": 60}, "image_dim = None and added_kv_proj_dim = 60; .* any other null"),
        ({"image_dim": 28}, "needs 5120 there"),
        ({"pos_embed_seq_len": 514}, "first and last frame"),
        ({"patch_size": (1, 0, 2)}, "patch_size"),
        ({"qk_norm": "rms_norm"}, "rms_norm_across_heads"),
    ],
    ids=lambda value: str(value),
)
def test_config_that_cannot_be(changes, word):
    from refsim.models.wan22.config import WanConfig

    with pytest.raises(UserError, match=word):
        WanConfig.from_dict(changes)


def test_inputs_that_do_not_fit(tiny):
    folder, inputs, _ = tiny
    with pytest.raises(UserError, match="3x7x12"):
        refsim.run(folder, inputs=make_inputs(latent=(3, 7, 12)), mesh="n300", parallel="sp2")
    with pytest.raises(UserError, match="71 time steps a sample but the latent has 72 tokens"):
        refsim.run(folder, inputs=inputs | {"timestep": torch.ones(2, 71)}, mesh="n300", parallel="sp2")
    with pytest.raises(UserError, match="prompt_layout split"):
        refsim.run(folder, inputs=inputs, mesh="n300", parallel="sp2", prompt_layout="split")
