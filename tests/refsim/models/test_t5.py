"""T5 and UMT5 encoders against transformers."""

from __future__ import annotations

import pytest
import torch

from refsim.config import parse_parallel
from refsim.launch import execute
from refsim.mesh import get_mesh
from tests.refsim.models.tiny_sd35 import relative_rmse
from tests.refsim.models.tiny_text import make_encoder


@pytest.mark.parametrize("family", ["t5", "umt5"])
@pytest.mark.parametrize(("mesh", "parallel"), [("t3k", "sp2_tp4"), ("tg", "sp8_tp4")])
def test_equals_transformers(tmp_path, family, mesh, parallel):
    encoder = make_encoder(family)
    encoder.save_pretrained(tmp_path)
    generator = torch.Generator().manual_seed(2)
    ids, mask = torch.randint(0, 64, (2, 150), generator=generator), torch.ones(2, 150, dtype=torch.int64)
    mask[0, 20:] = 0
    with torch.no_grad():
        expected = encoder(ids, mask).last_hidden_state
    spec = get_mesh(mesh)
    arguments = {"folder": str(tmp_path), "ids": ids.tolist(), "mask": mask.tolist()}
    result = execute("tests.refsim.models.text_programs:encode", spec, parse_parallel(parallel, spec), arguments)
    assert relative_rmse(result.tensors["out"][mask > 0], expected[mask > 0]) <= 5e-6
