"""Weights of a model that was never saved: the shapes it asks for, counted."""

from __future__ import annotations

import torch

from refsim.files.checkpoint import ShapeWeights


def test_what_is_asked_for_is_there_and_counted():
    weights = ShapeWeights(torch.bfloat16)
    exact = weights.to(torch.float32)
    part = weights.take("linear", (6, 5), (2, 7))  # a row of padding beyond the sixth
    scale = exact.take("norm", (5,))
    weights.take("linear", (6, 5), None, (0, 1))
    assert (part.shape, part.dtype, part.device.type) == ((5, 5), torch.bfloat16, "meta")
    assert scale.dtype == torch.float32
    for each in (weights, exact):
        assert each.bytes_of == {"linear": 2 * (25 + 6), "norm": 4 * 5}
        assert each.parameters == 6 * 5 + 5
        assert each.names == {"linear", "norm"}
    weights.finish("a model")


def test_tensors_can_be_made():
    weights = ShapeWeights(torch.bfloat16, lambda size: torch.full(size, 2.0))
    found = weights.take("bias", (4,), (1, 3))
    assert (found.tolist(), found.dtype) == ([2.0, 2.0], torch.bfloat16)
