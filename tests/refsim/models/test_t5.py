"""T5 and UMT5 encoders against transformers."""

from __future__ import annotations

import pytest
import torch

import refsim
from refsim.base.errors import UserError
from tests.refsim.helpers import relative_rmse
from tests.refsim.tiny.text import make_encoder


def make_inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 64, (2, 150), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(2, 150, dtype=torch.int64)
    mask[0, 20:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("family", ["t5", "umt5"])
def test_equals_transformers(tmp_path, family):
    encoder, inputs = make_encoder(family), make_inputs()
    encoder.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = encoder(**inputs).last_hidden_state
    for mesh, parallel in (("n150", "sp1"), ("t3k", "sp2_tp4")):
        result = refsim.run(tmp_path, inputs=inputs, mesh=mesh, parallel=parallel)
        assert relative_rmse(result.tensors["sample"], expected) <= 5e-6
        assert len(set(result.value["digests"])) == 1


def test_ids_that_are_none(tmp_path):
    make_encoder("t5").save_pretrained(tmp_path)
    inputs = make_inputs()
    with pytest.raises(UserError, match="id 64"):
        refsim.run(tmp_path, inputs={**inputs, "input_ids": inputs["input_ids"] + 1}, mesh="n300", parallel="tp2")
    with pytest.raises(UserError, match="int64"):
        refsim.run(tmp_path, inputs={**inputs, "input_ids": torch.zeros(2, 150)}, mesh="n300", parallel="tp2")
