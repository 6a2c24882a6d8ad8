"""Norms of diffusion transformers in one kernel: statistics, their exchange over a ring, scale, weight, bias, rotation.

    RMS     squares of all tiles of a row added by the packer | row sum --> ring --> added in pairs on the matrix unit
            --> vector unit: x 1/N, + eps, rsqrt --> packed
    layer   mean and variance of a device on the vector unit --> ring --> means added in pairs on the matrix unit,
            deviations on the vector unit, + eps, rsqrt --> packed | x - mean --> packed
    both    x scale | x weight | + bias: packed each, as wide as the destination
    rotary  x . swap --> packed; x cos + turned sin in the destination, packed once

A whole row on one device, or each head by itself, skips the ring. Source: tt-metal's `dit_rmsnorm_fused_compute.cpp`
and `dit_layernorm_fused_compute.cpp` in the wheel of ttnn 0.81.1.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from refsim.numerics.composites.compute import Compute, by_rows, reloaded
from refsim.numerics.composites.elementwise import swapped
from refsim.numerics.composites.norms import packed_squares, scaled_by
from refsim.numerics.formats import flush, round_ties_away

Affine = tuple[Tensor | None, Tensor | None]
DIT = Compute("HiFi4", fp32_dest_acc_en=True)


def fused_rms_norm(
    x: Tensor,
    shards: list[Tensor],
    affine: Affine = (None, None),
    *,
    eps: float = 1e-5,
    compute: Compute = DIT,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return a device's part of ``dit_fused_distributed_rmsnorm``.

    Args:
        x: float32 (..., N / devices), one of the ``shards``.
        shards: the columns of every device of the ring, in its order; ``[x]`` of a norm that no other device takes
            part in.
        affine: weight and bias, which broadcast to ``x``.
        eps: added on the vector unit, in float32.
        compute, out_dtype: of the operation.

    Returns:
        float32 of the shape of ``x``.
    """
    squares = [packed_squares(shard, compute=compute, out_dtype=compute.l1_dtype) for shard in shards]
    width = sum(shard.shape[-1] for shard in shards)
    unit = compute.vector()
    if len(squares) == 1:
        mean = compute.reduce("sum", squares[0], scaler=1.0 / width)
    else:
        mean = unit.stored(unit.mul(_ring_sum(squares, compute), 1.0 / width))
    scale = compute.store(compute.sfpu("rsqrt", unit.stored(unit.add(mean, eps))))
    return scaled_by(x, scale, affine, compute=compute, out_dtype=out_dtype)


def fused_layer_norm(
    x: Tensor,
    shards: list[Tensor],
    affine: Affine = (None, None),
    *,
    eps: float = 1e-5,
    compute: Compute = DIT,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return a device's part of ``dit_fused_distributed_layernorm``; arguments as of :func:`fused_rms_norm`.

    Mean and variance of a device's columns are taken exactly and packed: the vector unit keeps them in float32.
    """
    means = [compute.store(shard.mean(-1, keepdim=True)) for shard in shards]
    variances = [compute.store(shard.var(-1, correction=0, keepdim=True)) for shard in shards]
    unit = compute.vector()
    mean = means[0]
    variance = variances[0]
    if len(shards) > 1:
        mean = unit.stored(unit.mul(_ring_sum(means, compute), 1.0 / len(shards)))
        deviations = torch.zeros_like(mean)
        for part in means:
            off = unit.stored(unit.add(reloaded(part), -mean))
            deviations = unit.stored(unit.add(deviations, unit.stored(unit.mul(off, off))))
        total = unit.stored(unit.add(_ring_sum(variances, compute), deviations))
        variance = unit.stored(unit.mul(total, 1.0 / len(shards)))
    scale = compute.store(compute.sfpu("rsqrt", unit.stored(unit.add(variance, eps))))
    centred = compute.store(compute.sub(x, compute.store(mean)))
    return scaled_by(centred, scale, affine, compute=compute, out_dtype=out_dtype)


def _ring_sum(parts: list[Tensor], compute: Compute) -> Tensor:
    """Return the destination after tensors of an even ring are added to it in pairs."""
    pairs = [compute.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return reduce(lambda dest, pair: _in_destination(dest + pair, compute), pairs)


def rotated_once(x: Tensor, cos: Tensor, sin: Tensor, *, compute: Compute = DIT, out_dtype: str = "bfloat16") -> Tensor:
    """Return pairs of columns (2i, 2i + 1) turned: both products meet in the destination, which is packed once.

    Args:
        x: float32 (..., D), D a multiple of 32, packed as wide as the destination.
        cos, sin: float32 that broadcast to ``x``, each value twice.
        compute, out_dtype: of the norm.
    """
    swap = swapped()
    tiles = x.reshape(*x.shape[:-1], -1, swap.shape[0])
    turned = compute.store(compute.matmul(by_rows(tiles), swap)).reshape(x.shape)
    dest = _in_destination(compute.mul(x, cos) + compute.mul(turned, sin), compute)
    return compute.store(dest, out_dtype)


def _in_destination(x: Tensor, compute: Compute) -> Tensor:
    """Return what a destination holds of a sum: one of 16 bits rounds it, ties away."""
    return flush(x) if compute.fp32_dest_acc_en else round_ties_away(x, 7)
