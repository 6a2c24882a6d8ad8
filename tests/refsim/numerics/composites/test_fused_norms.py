"""Norms of one kernel with their ring, beside float64, and step by step beside functions of the units."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from refsim.numerics import accumulate, eltwise, matmul, reduce, sfpu
from refsim.numerics.composites import Compute, elementwise, fused_norms, norms
from tests.refsim.numerics.composites.test_composites import far, random

EXACT = Compute("HiFi4", fp32_dest_acc_en=True, level="exact")
NARROW = Compute("HiFi4", fp32_dest_acc_en=False)


def inputs() -> tuple[Tensor, list[Tensor], tuple[Tensor, Tensor]]:
    x = (random(16, 256) + 1.5).bfloat16().float()
    return x, list(x.chunk(4, -1)), (random(64, seed=1), random(64, seed=2))


@pytest.mark.parametrize(("compute", "limit"), [(fused_norms.DIT, 1e-5), (NARROW, 2e-4)], ids=["wide", "narrow"])
@pytest.mark.parametrize("centred", [True, False], ids=["layer", "rms"])
def test_beside_the_mathematics(compute, limit, centred):
    """A shard of a ring of four, and one device alone: all columns count, weight and bias are a shard's own."""
    x, shards, (weight, bias) = inputs()
    function = fused_norms.fused_layer_norm if centred else fused_norms.fused_rms_norm
    exact = x.double() - (x.double().mean(-1, keepdim=True) if centred else 0.0)
    exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-5)
    ours = function(shards[2], shards, (weight, bias), compute=compute)
    assert far(ours, exact.chunk(4, -1)[2] * weight + bias) < limit
    assert far(function(x, [x], compute=compute), exact) < limit


def test_rms_by_its_steps():
    """Squares by tile in L1, a row sum each, two pairs on the matrix unit, 1/N, eps, rsqrt; scale, weight, bias."""
    _, shards, (weight, bias) = inputs()
    wide = {"fp32_dest_acc_en": True}
    stats = []
    for shard in shards:
        squares = eltwise("mul", shard, shard, **wide)
        total = accumulate(squares[:, :32], squares[:, 32:], dtype="float32", **wide)
        stats.append(reduce("sum", total, **wide))
    total = eltwise("add", stats[0], stats[1], **wide) + eltwise("add", stats[2], stats[3], **wide)
    unit = EXACT.vector()
    scale = sfpu("rsqrt", unit.add(unit.mul(total, 1 / 256), 1e-5))
    expected = eltwise("mul", shards[1], scale, **wide)
    expected = eltwise("mul", expected, weight.expand(16, -1), **wide)
    expected = eltwise("add", expected, bias.expand(16, -1), **wide)
    ours = fused_norms.fused_rms_norm(shards[1], shards, (weight, bias), compute=EXACT, out_dtype="float32")
    assert torch.equal(ours, expected)


def test_a_rotation_is_packed_once():
    """Both products meet in the destination, where rotary_embedding_llama packs each."""
    x, cos, sin = random(32, 64), random(32, 64, seed=1), random(32, 64, seed=2)
    turned = matmul(x.reshape(-1, 32), elementwise.swapped()).reshape(x.shape)
    once = eltwise("mul", x, cos) + eltwise("mul", turned, sin)
    assert torch.equal(fused_norms.rotated_once(x, cos, sin, compute=EXACT, out_dtype="float32"), once)
    exact = x.double() * cos + turned.double() * sin
    each = far(elementwise.rotary(x, cos, sin), exact)
    assert far(fused_norms.rotated_once(x, cos, sin), exact) < each / 2


def test_moments_of_groups_that_are_given():
    """Beside a large mean sums in a 16-bit destination are coarse, moments of the vector unit are not."""
    x = (random(1, 8, 32, 32) + 30).bfloat16().float()
    exact = torch.nn.functional.group_norm(x.double(), 2)
    by_group = x.reshape(1, 2, -1)
    moments = by_group.mean(-1), by_group.var(-1, correction=0)
    summed = far(norms.group_norm(x, 2), exact)
    assert far(norms.group_norm(x, 2, moments=moments, compute=EXACT), exact) < min(1e-5, summed / 3)
