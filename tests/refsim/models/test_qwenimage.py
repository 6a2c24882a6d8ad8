"""Qwen-Image against diffusers: masks with holes, several images, two time steps (Edit-2511), every scheme."""

from __future__ import annotations

import pytest
import torch

import refsim
from refsim.base.errors import UserError
from refsim.models.qwenimage.config import QwenImageConfig
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.qwenimage import CONFIG, ONE, SEVERAL, answer, make_inputs, make_model, save

EDIT = {"zero_cond_t": True}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Folders and models, of Qwen-Image and of Edit-2511."""
    models = {name: make_model(**changes) for name, changes in (("image", {}), ("edit", EDIT))}
    return {name: (save(model, tmp_path_factory.mktemp(name)), model) for name, model in models.items()}


@pytest.mark.parametrize(
    ("name", "images", "mesh", "parallel", "options"),
    [
        ("image", ONE, "n150", "sp1", {}),
        ("image", ONE, "t3k", "sp4_tp2", {"attention": "ulysses", "prompt_layout": "split"}),
        ("image", SEVERAL, "t3k", "cfg2_sp2_tp2", {"prompt_layout": "split"}),
        ("edit", SEVERAL, "n150", "sp1", {}),
        ("edit", SEVERAL, "t3k", "sp2_tp4", {}),
        ("edit", SEVERAL, "t3k", "cfg2_sp4", {}),
    ],
    ids=lambda value: (
        "-".join(map(str, value)) if isinstance(value, dict) else "" if isinstance(value, tuple) else None
    ),
)
def test_equals_diffusers(tiny, name, images, mesh, parallel, options):
    folder, model = tiny[name]
    inputs = make_inputs(images=images)
    expected = answer(model, inputs)
    result = refsim.run(folder, inputs=inputs, mesh=mesh, parallel=parallel, **options)
    assert result.tensors["sample"].shape == expected.shape
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
    assert len(set(result.value["digests"])) == 1
    assert not result.hazards


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"axes_dims_rope": (4, 6, 8)}, "add up to attention_head_dim"),
        ({"axes_dims_rope": (8, 8)}, "a list of 3"),
        ({"use_layer3d_rope": True}, "Layered"),
        ({"num_attention_heads": 0}, "whole number above 0"),
        ({"zero_cond_t": "yes"}, "zero_cond_t"),
    ],
    ids=str,
)
def test_configs_that_are_refused(changes, word):
    with pytest.raises(UserError, match=word):
        QwenImageConfig.from_dict({**CONFIG, **changes})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"img_shapes": torch.tensor([[1, 7, 10]])}, "70 tokens in all, but hidden_states has 77"),
        ({"img_shapes": torch.tensor([7, 11])}, "img_shapes"),
        ({"encoder_hidden_states_mask": torch.ones(2, 28)}, "bool"),
        ({"encoder_hidden_states_mask": torch.ones(2, 28, dtype=torch.bool)}, "prompt tokens"),
        ({"encoder_hidden_states_mask": None}, "lacks 'encoder_hidden_states_mask'"),
    ],
    ids=["other_sizes", "no_frames", "mask_of_floats", "shorter_mask", "no_mask"],
)
def test_inputs_that_do_not_fit(tiny, changes, word):
    inputs = {name: x for name, x in (make_inputs() | changes).items() if x is not None}
    with pytest.raises(UserError, match=word):
        refsim.run(tiny["image"][0], inputs=inputs, mesh="n150", parallel="tp1")
