"""CLIP text encoders against transformers."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import refsim
from refsim.base.errors import UserError
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.text import make_clip


def make_ids() -> torch.Tensor:
    ids = torch.randint(2, 64, (2, 77), generator=torch.Generator().manual_seed(2))
    ids[0, 12:], ids[1, 70:] = 1, 1  # the end token, which pads as well
    return ids


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu", "eos_token_id": 2}], ids=["clip_l", "clip_g"])
def test_pooled_equals_transformers(tmp_path, changes):
    encoder, ids = make_clip(**changes), make_ids()
    encoder.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = encoder(ids).text_embeds
    for mesh, parallel in (("n150", "sp1"), ("t3k", "sp2_tp4")):
        result = refsim.run(tmp_path, inputs={"input_ids": ids}, mesh=mesh, parallel=parallel)
        assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
        assert len(set(result.value["digests"])) == 1


@pytest.mark.parametrize("prefix", ["", "text_model."], ids=["transformers5", "transformers4"])
def test_without_projection(tmp_path, prefix):
    encoder, ids = make_clip(projected=False), make_ids()
    encoder.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({f"{prefix}{name}": x for name, x in load_file(file).items()}, file)
    with torch.no_grad():
        expected = encoder(ids).pooler_output
    result = refsim.run(tmp_path, inputs={"input_ids": ids}, mesh="n300", parallel="tp2")
    assert relative_rmse(result.tensors["sample"], expected) <= 5e-6


def test_sequence_is_the_penultimate_state(tmp_path):
    encoder, ids = make_clip(), make_ids()
    encoder.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = encoder(ids, output_hidden_states=True).hidden_states[-2]
    for parallel in ("sp2_tp4", "cfg2_sp2_tp2"):
        result = refsim.run(tmp_path, inputs={"input_ids": ids}, mesh="t3k", parallel=parallel)
        assert result.tensors.keys() == {"sample", "sequence"}
        assert relative_rmse(result.tensors["sequence"], expected) <= 5e-6


def test_ids_and_lengths_that_are_none(tmp_path):
    make_clip().save_pretrained(tmp_path)
    ids = make_ids()
    with pytest.raises(UserError, match="outside 0 to 63"):
        refsim.run(tmp_path, inputs={"input_ids": ids + 62}, mesh="n300", parallel="tp2")
    with pytest.raises(UserError, match="77 positions"):
        refsim.run(tmp_path, inputs={"input_ids": torch.ones(1, 78, dtype=torch.int64)}, mesh="n300", parallel="tp2")
