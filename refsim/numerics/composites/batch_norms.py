"""Batch norm: statistics of channels, those that run along, and what a channel becomes.

    16-bit destination    variance + eps --> rsqrt --> packed | x - mean, x that, x weight, + bias in the destination
    32-bit destination    the same on the vector unit
    in training           mean of x, mean of x^2 (packed), less the mean's square; running (1 - m) + batch m

Source: tt-metal's `batch_norm_kernel.cpp`, `batch_norm_sfpu_kernel.cpp` and `running_statistics_kernel.cpp` in the
wheel of ttnn 0.81.1; which operations make the statistics of a batch is from memory of its sources.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.numerics.composites.compute import Compute
from refsim.numerics.composites.norms import from_moments

BATCH_NORM = Compute("HiFi4", fp32_dest_acc_en=False)


def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    affine: tuple[Tensor | None, Tensor | None] = (None, None),
    *,
    eps: float = 1e-5,
    compute: Compute = BATCH_NORM,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``ttnn.batch_norm`` of float32 (B, C, H, W).

    Args:
        x: the images.
        mean, variance: of every channel, (1, C, 1, 1).
        affine: weight and bias, likewise.
        eps: added to the variance, in bf16 with a 16-bit destination.
        compute, out_dtype: of the operation; the destination's width chooses the kernel.
    """
    if not compute.fp32_dest_acc_en:
        return from_moments(x, mean, variance, affine, eps=eps, compute=compute, out_dtype=out_dtype)
    unit = compute.vector()
    scale = compute.store(compute.sfpu("rsqrt", unit.add(variance, eps)))
    mean, scale, weight, bias = (None if each is None else each.expand_as(x) for each in (mean, scale, *affine))
    dest = unit.mul(unit.add(x, -mean), scale)
    if weight is not None:
        dest = unit.mul(dest, weight)
    return compute.store(dest if bias is None else unit.add(dest, bias), out_dtype)


def channel_moments(x: Tensor, *, dtype: str = "bfloat16", compute: Compute = BATCH_NORM) -> tuple[Tensor, Tensor]:
    """Return mean and variance (1, C, 1, 1) of float32 (B, C, H, W), of which every step is packed as ``dtype``."""
    unit = compute.vector()
    squares = compute.store(unit.stored(unit.mul(x, x)), dtype)
    mean, of_squares = (_channel_mean(values, dtype, compute) for values in (x, squares))
    square = compute.store(unit.stored(unit.mul(mean, mean)), dtype)
    difference = unit.add(of_squares, -square) if dtype == "float32" else compute.sub(of_squares, square)
    return mean, compute.store(difference, dtype)


def _channel_mean(x: Tensor, dtype: str, compute: Compute) -> Tensor:
    """Return the mean of images, then of the batch; in float32 on the vector unit, which rounds nothing that counts."""
    if dtype == "float32" and compute.fp32_dest_acc_en:
        return compute.store(x.mean((0, 2, 3), keepdim=True), dtype)
    images = compute.store(compute.reduce_both(x, 1.0 / x.shape[-2:].numel(), dtype), dtype)
    return compute.store(compute.reduce("mean", images.permute(1, 3, 0, 2), "second_last"), dtype).permute(2, 0, 3, 1)


def moved(running: Tensor, batch: Tensor, momentum: float, *, dtype: str = "bfloat16", compute: Compute) -> Tensor:
    """Return running statistics (1, C, 1, 1) that have moved by ``momentum`` towards those of a batch."""
    share = torch.full_like(running, momentum)
    rest = compute.sub(torch.ones_like(running), share)
    if compute.fp32_dest_acc_en:
        unit = compute.vector()
        return compute.store(unit.add(unit.mul(rest, running), unit.mul(share, batch)), dtype)
    share = share.bfloat16().float()
    total = compute.mul(rest, running) + compute.mul(share, batch)
    return compute.store(compute.vector().stored(total), dtype)
