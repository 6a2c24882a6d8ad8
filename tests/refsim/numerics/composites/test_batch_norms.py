"""Batch norm beside float64, by destination; statistics of a batch; statistics that run along."""

from __future__ import annotations

import pytest
import torch

from refsim.numerics.composites import Compute, batch_norms
from tests.refsim.numerics.composites.test_composites import far, random

X = (random(3, 8, 24, 40) + 4).bfloat16().float()
MOMENTS = X.mean((0, 2, 3), keepdim=True), X.var((0, 2, 3), correction=0, keepdim=True)
WIDE, NARROW = Compute(fp32_dest_acc_en=True), batch_norms.BATCH_NORM


def test_the_destination_chooses_the_kernel():
    """The vector unit leaves the packer's rounding alone; the matrix unit's eleven bits cost more."""
    weight, bias = random(1, 8, 1, 1, seed=1), random(1, 8, 1, 1, seed=2)
    mean, variance = (moment.double() for moment in MOMENTS)
    wanted = (X.double() - mean) * torch.rsqrt(variance + 1e-5) * weight + bias
    wide, narrow = (batch_norms.batch_norm(X, *MOMENTS, (weight, bias), compute=each) for each in (WIDE, NARROW))
    assert far(wide, wanted) < 4e-6
    assert 2 * far(wide, wanted) < far(narrow, wanted) < 1e-4


@pytest.mark.parametrize(("dtype", "compute", "limit"), [("bfloat16", NARROW, 0.02), ("float32", WIDE, 1e-5)])
def test_moments_of_a_batch(dtype, compute, limit):
    """A 16-bit destination gains 2 % in sums of one sign; little of a variance, their difference, is left."""
    mean, variance = batch_norms.channel_moments(X, dtype=dtype, compute=compute)
    assert torch.allclose(mean, MOMENTS[0], rtol=limit)
    assert torch.allclose(variance, MOMENTS[1], rtol=0, atol=40 * limit)


def test_statistics_that_run_along():
    running, batch = random(1, 8, 1, 1, seed=3), random(1, 8, 1, 1, seed=4)
    wanted = 0.9 * running + 0.1 * batch
    for compute, limit in ((NARROW, 2e-2), (WIDE, 8e-3)):
        assert torch.allclose(batch_norms.moved(running, batch, 0.1, compute=compute), wanted, rtol=limit, atol=limit)
