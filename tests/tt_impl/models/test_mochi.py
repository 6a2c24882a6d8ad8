"""What no parity case runs of Mochi in TTNN: a prompt without a valid token, masks that a split prompt cannot have."""

from __future__ import annotations

import pytest
import torch

import refsim
from parity.cases.checkpoints import MODELS
from parity.cases.model_folders import build
from parity.cases.suites import registry
from parity.measure.metrics import one_minus_pcc
from refsim.base.errors import UserError
from tt_impl.api import run

registry()  # the suites register the models
TEXT = 45


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mochi") / "model"
    build(MODELS["mochi_tiny64"], 0, path)
    return path


def inputs_of(*masks: torch.Tensor) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    return {
        "hidden_states": torch.randn(len(masks), 12, 2, 6, 4, generator=g).bfloat16(),
        "encoder_hidden_states": torch.randn(len(masks), TEXT, 256, generator=g).bfloat16(),
        "timestep": torch.tensor([13.0, 250.5])[: len(masks)],
        "encoder_attention_mask": torch.stack(masks),
    }


def test_a_prompt_without_a_valid_token(folder):
    token = torch.arange(TEXT)
    inputs = inputs_of(token < 0, token < 7)
    where = {"mesh": "n300", "parallel": "tp2", "dtype": "bf16"}
    theirs = refsim.run(folder, inputs=inputs, **where).tensors["sample"].float()
    ours = run(folder, inputs=inputs, backend="ttnn-mock", **where).tensors["sample"].float()
    assert not torch.equal(ours, theirs)
    assert max(map(one_minus_pcc, ours, theirs)) < 5e-4


def test_a_split_prompt_with_holes_is_refused(folder):
    holes = torch.arange(TEXT) % 4 != 1
    where = {"mesh": "n300", "parallel": "sp2", "prompt_layout": "split", "dtype": "bf16", "backend": "ttnn-mock"}
    with pytest.raises(UserError, match="a mask with holes moves the answers"):
        run(folder, inputs=inputs_of(holes), **where)
