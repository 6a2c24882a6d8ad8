"""What bf16 storage leaves in fp32: modulation tables and gates of Wan.

What is asked for is the small difference of two large numbers, all of which is lost if one of them is rounded to bf16.
"""

from __future__ import annotations

import pytest
import torch

from refsim.base.options import RunOptions
from refsim.models.wan22.block import WanBlock
from refsim.models.wan22.config import WanConfig
from refsim.models.wan22.transformer import WanTransformer
from refsim.parallel.sequence import TokenShards
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor
from tests.refsim.helpers import Held
from tests.refsim.tiny.wan import CONFIG, make_inputs, make_model

SMALL = 2.0**-12
"""Of 1 + SMALL bf16 keeps 1."""


@pytest.fixture
def device():
    return Device(RunOptions.of(mesh="n150", parallel="sp1", dtype="bf16"))


def still_model():
    """diffusers' Wan of one block in which nothing moves: every weight is zero."""
    model = make_model(num_layers=1)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    return model


@pytest.mark.parametrize(("part", "chunk"), [("attn1.to_out.0", 2), ("ffn.net.2", 5)], ids=["attention", "ffn"])
def test_gates_of_a_block_are_fp32(device, part, chunk):
    """-1 + 1 * (1 + SMALL), the 1 from the part's bias."""
    state = still_model().state_dict()
    state[f"blocks.0.{part}.bias"] += 1
    state["blocks.0.scale_shift_table"][:, chunk] = 1 + SMALL
    block = WanBlock(Held(state, torch.bfloat16), device, WanConfig.from_dict(CONFIG), 0)
    features, rows = 60, 4
    time = [MeshTensor(torch.zeros(1, 1, features, dtype=torch.bfloat16))] * 6
    stream = MeshTensor(-torch.ones(1, rows, features, dtype=torch.bfloat16))
    rotary = torch.ones(rows, 10), torch.zeros(rows, 10)
    prompt = MeshTensor(torch.zeros(1, 3, features, dtype=torch.bfloat16))
    found = block(stream, prompt, time, rotary=rotary, tokens=TokenShards.of(rows, 1)).local
    assert torch.equal(found, torch.full_like(found, SMALL))


def test_the_last_modulation_is_fp32(device):
    """-1 + (1 + SMALL), the -1 from the time step, as diffusers gives it too."""
    model = still_model()
    with torch.no_grad():
        model.condition_embedder.time_embedder.linear_2.bias.fill_(-1.0)
        model.scale_shift_table[:, 0] = 1 + SMALL
        model.proj_out.weight[:, 0] = 1.0
    given = {k: x.bfloat16() if x.ndim > 1 else x for k, x in make_inputs(batch=1, latent=(1, 4, 4)).items()}
    config = WanConfig.from_dict(CONFIG | {"num_layers": 1})
    ours = WanTransformer(Held(model.state_dict(), torch.bfloat16), device, config)(**given)
    assert torch.equal(ours, torch.full_like(ours, SMALL))
