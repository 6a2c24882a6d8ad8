"""Mochi's transformer and decoder against diffusers: configurations and masks a user may have, refusals, sigmas."""

from __future__ import annotations

import json

import pytest
import torch

import refsim
from parity.cases.checkpoints import MODELS
from parity.cases.model_folders import build, load_oracle
from parity.cases.oracles import oracle_of
from parity.cases.suites import registry
from refsim.base.errors import UserError
from refsim.models.mochi.config import MochiConfig
from refsim.models.vae_mochi.config import MochiVAEConfig, chunks
from refsim.pipelines.hosts.mochi import MochiHost, linear_then_quadratic
from refsim.pipelines.request import PipelineRequest
from tests.refsim.helpers import relative_rmse

pytest.importorskip("diffusers")
registry()  # the suites register the models
TEXT = 13


def answers(folder, inputs):
    model = load_oracle(folder, torch.float32)
    with torch.inference_mode():
        return oracle_of("MochiTransformer3DModel").answer(model, inputs)


def inputs_of(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Inputs of a latent with two frames of 3 x 2 patches."""
    g = torch.Generator().manual_seed(3)
    batch = len(mask)
    return {
        "hidden_states": torch.randn(batch, 12, 2, 6, 4, generator=g),
        "encoder_hidden_states": torch.randn(batch, TEXT, 24, generator=g),
        "timestep": torch.tensor([13.0, 250.5, 999.0])[:batch],
        "encoder_attention_mask": mask,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mochi") / "model"
    build(MODELS["mochi_tiny"].but(num_layers=2, num_attention_heads=5, out_channels=6, time_embed_dim=20), 0, path)
    return path


@pytest.mark.parametrize("layout", ["replicated", "split"])
def test_prompts_of_any_valid_tokens_the_empty_one_too(folder, layout):
    """Five heads, half as many channels out, samples without holes, with holes, and without a valid token."""
    token = torch.arange(TEXT)
    inputs = inputs_of(torch.stack([token < 4, token % 3 > 0, token < 0]))
    result = refsim.run(folder, inputs=inputs, mesh="bh-qb", parallel="sp2_tp2", prompt_layout=layout)
    assert relative_rmse(result.tensors["sample"], answers(folder, inputs)) <= 5e-6


def test_latents_that_do_not_fit_and_masks_of_another_kind(folder):
    inputs = inputs_of(torch.ones(1, TEXT, dtype=torch.bool))
    with pytest.raises(UserError, match=r"5x4 .* does not divide into 1x2x2 patches"):
        refsim.run(folder, inputs=inputs | {"hidden_states": torch.zeros(1, 12, 2, 5, 4)}, mesh="n150", parallel="sp1")
    with pytest.raises(UserError, match="encoder_attention_mask is float32"):
        floats = {"encoder_attention_mask": torch.ones(1, TEXT)}
        refsim.run(folder, inputs=inputs | floats, mesh="n150", parallel="sp1")


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        (MochiConfig, {"text_embed_dim": 20}, "must be a multiple of 8"),
        (MochiConfig, {"attention_head_dim": 15}, "attention_head_dim = 15; it must be an even number"),
        (MochiConfig, {"time_embed_dim": 33}, "time_embed_dim = 33; it must be an even number"),
        (MochiConfig, {"qk_norm": "layer_norm"}, "qk_norm"),
        (MochiVAEConfig, {"layers_per_block": (1, 1)}, "2 entries in layers_per_block; 5 are needed"),
        (MochiVAEConfig, {"latents_std": (1.0,)}, "1 entries in latents_std; 12 are needed"),
        (MochiVAEConfig, {"decoder_block_out_channels": (32, 40, 32, 32)}, "40 in decoder_block_out_channels"),
    ],
)
def test_config_that_cannot_be(config, changes, said):
    with pytest.raises(UserError, match=said):
        config.from_dict(changes)


def test_chunks_take_every_frame_once():
    assert [chunks(n) for n in (1, 2, 3, 4, 7)] == [[1], [2], [3], [2, 2], [3, 2, 2]]


def test_sigmas_are_diffusers_own():
    from diffusers.pipelines.mochi.pipeline_mochi import linear_quadratic_schedule

    for steps in (2, 3, 64):
        assert linear_then_quadratic(steps) == pytest.approx(linear_quadratic_schedule(steps, 0.025), abs=1e-12)


class Host(MochiHost):
    """Of what needs no folder of weights."""

    def sizes(self, root, request):
        return type("Sizes", (), {"tokens": 5, "latents": (1, 12, 2, 4, 4)})


def test_an_empty_prompt_is_zeros_where_the_folder_says_so(monkeypatch, tmp_path):
    tokens = type("Tokens", (), {"input_ids": torch.ones(2, 5), "attention_mask": torch.ones(2, 5)})
    monkeypatch.setattr("refsim.pipelines.hosts.mochi.tokenize", lambda *_, **__: tokens)
    request = PipelineRequest("a cat", "", steps=2, guidance=4.5)
    for zeros, left in ((True, 0), (False, 5)):
        index = {"_class_name": "MochiPipeline", "force_zeros_for_empty_prompt": zeros}
        (tmp_path / "model_index.json").write_text(json.dumps(index))
        prepared = Host().prepare(tmp_path, request)
        assert prepared["attention_mask"].sum(1).tolist() == [left, 5] == prepared["input_ids"].sum(1).tolist()


def test_a_single_step_is_refused(tmp_path):
    (tmp_path / "vae").mkdir()
    (tmp_path / "transformer").mkdir()
    for part in ("vae", "transformer"):
        (tmp_path / part / "config.json").write_text(json.dumps({"_class_name": "x"}))
    with pytest.raises(UserError, match="steps is 2 or more"):
        MochiHost().sizes(tmp_path, PipelineRequest("a cat", steps=1))
