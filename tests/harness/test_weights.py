"""Weights that are not there: values from the name and the seed alone, and no memory before they are used."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from refsim.base.errors import UserError
from tt_impl.harness.weights import RandomWeights

SHAPE = (1 << 20, 1 << 20)
"""A TiB and more."""


def test_the_same_seed_gives_the_same_bits() -> None:
    first, again, other = (RandomWeights(seed, True).tensor("a.weight", (8, 4), torch.bfloat16) for seed in (1, 1, 2))
    assert torch.equal(first + 0, again + 0) and not torch.equal(first + 0, other + 0)
    assert torch.equal(
        first.to(torch.float32) + 0, RandomWeights(1, True).tensor("a.weight", (8, 4), torch.float32) + 0
    )
    assert torch.equal(first.sum(dtype=torch.float64), (first + 0).sum(dtype=torch.float64))
    assert not torch.equal(first + 0, RandomWeights(1, True).tensor("b.weight", (8, 4), torch.bfloat16) + 0)


@pytest.mark.parametrize("values", [True, False])
def test_a_model_takes_no_memory_and_computes(values: bool) -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"small": nn.Linear(4, 8), "huge": nn.Linear(*SHAPE)})
    RandomWeights(0, values).fill(model, torch.bfloat16)
    assert model["huge"].weight.shape == SHAPE and model["huge"].weight.dtype == torch.bfloat16
    result = model["small"](torch.ones(2, 4, dtype=torch.bfloat16))
    assert result.shape == (2, 8) and bool(result.any()) == values
    if not values:
        assert model["huge"](torch.ones(2, SHAPE[0], dtype=torch.bfloat16)).shape == (2, SHAPE[1])


def test_a_file_is_its_header(tmp_path: Path) -> None:
    """The data may be missing; the values are those of the same name in any file."""
    path = tmp_path / "x.safetensors"
    header = {"a.weight": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}}
    header["huge"] = {"dtype": "F32", "shape": list(SHAPE), "data_offsets": [64, 2**42]}
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    tensors = RandomWeights(0, True).file(path)
    assert tensors["huge"].shape == SHAPE
    assert torch.equal(tensors["a.weight"] + 0, RandomWeights(0, True).tensor("a.weight", (8, 4), torch.bfloat16) + 0)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="has no header of safetensors"):
        RandomWeights(0, True).file(path)


def test_a_configuration_that_is_missing() -> None:
    with pytest.raises(UserError, match=r"from_pretrained\('no/such/model/transformer'\) has no config.json here"):
        RandomWeights(0, True).model(nn.Linear, "no/such/model", "transformer", torch.float32)
