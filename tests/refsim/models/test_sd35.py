"""The SD3.5 transformer against diffusers, its padding, and what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import refsim
from refsim.base.options import RunOptions
from refsim.runtime.launch import execute
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.sd35 import make_inputs, make_model, save

EXAMPLES = Path(__file__).parents[3] / "examples"


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
        ("t3k", "cfg2_sp2_tp2", {"attention": "ulysses", "prompt_layout": "split"}),
    ],
    ids=["serial", "parallel"],
)
def test_equals_diffusers(tiny, mesh, parallel, options):
    folder, inputs, expected = tiny
    result = refsim.run(folder, inputs=inputs, mesh=mesh, parallel=parallel, **options)
    assert result.tensors["sample"].shape == expected.shape
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
    assert len(set(result.value["digests"])) == 1


def test_four_galaxies_of_128_ranks_equal_diffusers(tmp_path):
    """A ring of 8 along the first axis, tensor parallel of 16 along the second, from the example's file."""
    model, inputs = make_model(num_layers=2, num_attention_heads=16, caption_projection_dim=256), make_inputs(batch=1)
    with torch.no_grad():
        expected = model(**inputs, return_dict=False)[0]
    mesh = str(EXAMPLES / "four_galaxies.json")
    result = refsim.run(save(model, tmp_path), inputs=inputs, mesh=mesh, parallel="sp8_tp16")
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
    assert (len(result.value["digests"]), len(set(result.value["digests"]))) == (128, 1)


def test_cfg_parallel_equals_cfg_fusion(tiny):
    folder, inputs, expected = tiny
    answers = [
        refsim.run(folder, inputs=inputs, mesh="n300", parallel=p, guidance=3.5).tensors["guided"]
        for p in ("cfg2", "sp2")
    ]
    uncond, cond = expected.chunk(2)
    for answer in answers:
        assert relative_rmse(answer, uncond + 3.5 * (cond - uncond)) <= 5e-6


def _execute(program: str, folder, mesh: str, parallel: str):
    options = RunOptions.of(mesh=mesh, parallel=parallel)
    return execute(f"tests.refsim.models.programs:{program}", options, {"checkpoint": str(folder)})


@pytest.mark.parametrize(("mesh", "parallel"), [("n300", "tp2"), ("t3k-1x8", "tp8")])
def test_padded_lanes_are_inert(tiny, mesh, parallel):
    for answer in _execute("padded_lanes", tiny[0], mesh, parallel).values:
        assert answer["padded_features"] > 0
        assert answer["padded_heads"] > 0
        assert answer["linear_equal"]
        assert answer["norm_equal"]
        for lanes in ("norm_padding", "modulation_padding", "padded_values", "residual_padding"):
            assert answer[lanes] == 0.0, lanes


def test_fused_qkv_is_the_reshuffled_weight(tmp_path):
    folder = save(make_model(num_attention_heads=4, caption_projection_dim=64), tmp_path)
    for answer in _execute("fused_qkv", folder, "t3k", "sp2_tp4").values:
        assert answer["equal"]


def test_a_rank_reads_its_share_only(tiny):
    whole = sum(t.numel() for t in make_model().state_dict().values())
    (serial,) = (v["elements"] for v in _execute("elements_read", tiny[0], "n150", "sp1").values)
    assert serial < whole  # the positional table is read row by row, later
    for answer in _execute("elements_read", tiny[0], "n300", "tp2").values:
        assert answer["elements"] < 0.75 * serial
