"""Attention of single tokens: beside float64, and a chunk beside functions of the units."""

from __future__ import annotations

import pytest
import torch

from refsim.numerics import eltwise, matmul, pack, reduce, sfpu
from refsim.numerics.composites import Compute, decode
from tests.refsim.numerics.composites.test_composites import far, random

Q, K, V = random(8, 64), random(600, 64, seed=1), random(600, 64, seed=2)
EXACT = Compute("HiFi2", level="exact")


def expected(mask: torch.Tensor | None = None, sink: torch.Tensor | None = None) -> torch.Tensor:
    scores = Q.double() @ K.double().T + (0.0 if mask is None else mask)
    scores = scores if sink is None else torch.cat([scores, sink.double()], -1)
    return torch.softmax(scores / 8, -1)[:, :600] @ V.double()


@pytest.mark.parametrize("compute", [Compute("HiFi2"), Compute("HiFi2", approximate=True)], ids=["accurate", "approx"])
def test_chunks_masks_and_sinks(compute):
    """Chunks of 256, the last one shorter; a mask that hides the first chunk of some heads; a sink larger than all."""
    assert far(decode.decode_attention(Q, K, V, k_chunk=256, compute=compute), expected()) < 1e-3
    mask = torch.zeros(8, 600)
    mask[:4, :300] = -torch.inf
    mask[4:] = random(4, 600, seed=3)
    assert far(decode.decode_attention(Q, K, V, k_chunk=256, mask=mask, compute=compute), expected(mask)) < 2e-3
    sink = torch.linspace(-8, 48, 8)[:, None].bfloat16().float()
    ours = decode.decode_attention(Q, K, V, k_chunk=256, sink=sink, compute=compute)
    assert far(ours, expected(sink=sink)) < 1e-3


def test_a_chunk_by_its_steps():
    """Scores, maximum, exponential, row sum and output of one chunk are packed to bf16 in between."""
    how = {"fp32_dest_acc_en": False}
    scores = pack(matmul(Q, K[:64].T.contiguous(), fidelity="HiFi2", **how), "bfloat16")
    differences = eltwise("sub", scores, scores.amax(-1, keepdim=True), **how)
    unit = EXACT.vector()
    powers = pack(sfpu("exp", unit.stored(unit.mul(differences, 0.125)), **how), "bfloat16")
    inverse = sfpu("reciprocal", pack(reduce("sum", powers, fidelity="HiFi2", **how), "bfloat16"), **how)
    output = pack(matmul(powers, V[:64], fidelity="HiFi2", **how), "bfloat16")
    by_hand = eltwise("mul", output, pack(inverse, "bfloat16"), fidelity="HiFi2", **how)
    assert torch.equal(decode.decode_attention(Q, K[:64], V[:64], k_chunk=64, compute=EXACT), by_hand)
