"""Layer norm, RMS norm, both over a distributed last dim, group norm, softmax.

    x --> row sum (matmul with ones: x in SrcB) x 1/N --> mean --> x - mean --> squares --> row sum x 1/N --> + eps
      --> rsqrt --> (x - mean) rsqrt --> gamma --> + beta

    distributed:  each device packs (row sum of squares, row sum of x) to bf16 --> gathered --> added, x 1/N
                  variance = mean of squares - mean^2

Every arrow packs an intermediate result, in fp32 with a destination of 32 bits, otherwise in bf16, and the matrix unit
reads fp32 as TF32. Layer norm has HiFi4 and 32 bits by default, RMS norm and the distributed ones HiFi4 and 16 bits,
softmax HiFi4 and 32 bits for fp32 input only.

Source: tt-metal's `layernorm.cpp`, `layernorm_pre_allgather.cpp`, `layernorm_post_allgather.cpp`, `softmax.cpp`.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.cheap import add_to_bf16, slices
from refsim.numerics.composites.compute import Compute, zeros_to
from refsim.numerics.matrix_unit import FIDELITIES
from refsim.numerics.packer import accumulate

LAYER_NORM = Compute("HiFi4", fp32_dest_acc_en=True)
RMS_NORM = Compute("HiFi4", fp32_dest_acc_en=False)
DISTRIBUTED_NORM = Compute("HiFi4", fp32_dest_acc_en=False)
SOFTMAX = Compute("HiFi4", fp32_dest_acc_en=False)
TILE = 32
"""Columns of a tile."""
SLOT = 8
"""Values of bf16 in the 16 bytes that a core's mean of a block has in the memory of the core that gathers them."""


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    compute: Compute = LAYER_NORM,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``ttnn.layer_norm`` of float32 (..., N) over the last dim; weight and bias (N,)."""
    mean = _mean(x, compute)
    centred = compute.store(compute.sub(x, mean))
    return _scaled(centred, compute, eps, weight, bias, out_dtype)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    compute: Compute = RMS_NORM,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``ttnn.rms_norm`` of float32 (..., N) over the last dim; weight and bias (N,)."""
    return _scaled(x, compute, eps, weight, bias, out_dtype)


def _mean(x: Tensor, compute: Compute) -> Tensor:
    """Return the packed row mean: a sum of ones times x, then 1/N in the destination."""
    total = compute.reduce("sum", x)
    return compute.store(compute.vector().stored(compute.vector().mul(total, 1.0 / x.shape[-1])))


def _scaled(
    centred: Tensor, compute: Compute, eps: float, weight: Tensor | None, bias: Tensor | None, out_dtype: str
) -> Tensor:
    squares = compute.store(compute.mul(centred, centred))
    return _normed(centred, _mean(squares, compute), compute, eps, (weight, bias), out_dtype)


def _normed(
    centred: Tensor,
    variance: Tensor,
    compute: Compute,
    eps: float,
    affine: tuple[Tensor | None, Tensor | None],
    out_dtype: str,
) -> Tensor:
    shifted = compute.add(variance, torch.full_like(variance, eps).bfloat16().float())
    return scaled_by(
        centred, compute.store(compute.sfpu("rsqrt", shifted)), affine, compute=compute, out_dtype=out_dtype
    )


def scaled_by(
    centred: Tensor,
    scale: Tensor,
    affine: tuple[Tensor | None, Tensor | None] = (None, None),
    *,
    compute: Compute = LAYER_NORM,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``centred`` (..., N) times packed ``scale`` (..., 1) and weight, plus bias, packed after each."""
    dest = compute.mul(centred, scale)
    weight, bias = affine
    if weight is not None:
        dest = compute.mul(compute.store(dest), weight)
    if bias is not None:
        dest = compute.add(compute.store(dest), bias)
    return compute.store(dest, out_dtype)


def distributed_norm(
    shards: list[Tensor],
    weights: list[Tensor] | None = None,
    biases: list[Tensor] | None = None,
    *,
    kind: str = "layer",
    eps: float = 1e-5,
    compute: Compute = DISTRIBUTED_NORM,
    out_dtype: str = "bfloat16",
) -> list[Tensor]:
    """Return ``layer_norm_pre_all_gather``, the gather, ``layer_norm_post_all_gather`` on every device of a mesh axis.

    Args:
        shards: float32 (..., N / devices) of each device.
        weights, biases: (N / devices,) of each device.
        kind: ``layer`` or ``rms``.
        eps, compute, out_dtype: as of :func:`layer_norm`; both parts have the same compute config.

    Raises:
        UserError: an unknown kind.
    """
    if kind not in ("layer", "rms"):
        raise UserError(f"norm '{kind}' does not exist; choose one of layer, rms.")
    gathered = torch.cat([statistics(x, kind=kind, compute=compute) for x in shards], dim=-1)
    width = sum(x.shape[-1] for x in shards)
    results = []
    for index, x in enumerate(shards):
        affine = tuple(values[index] if values else None for values in (weights, biases))
        how = {"kind": kind, "eps": eps, "compute": compute, "out_dtype": out_dtype}
        results.append(from_statistics(x, gathered, width, affine, **how))
    return results


def statistics(
    x: Tensor, *, kind: str = "layer", compute: Compute = DISTRIBUTED_NORM, out_dtype: str = "bfloat16"
) -> Tensor:
    """Return what a device hands to the gather of a distributed norm: (sum of squares, and of ``layer`` sum), packed.

    Args:
        x: float32 (..., N / devices).
        kind: ``layer`` or ``rms``.
        compute: of ``layer_norm_pre_all_gather``.
        out_dtype: of the statistics.
    """
    sums = [compute.reduce("sum", compute.store(compute.mul(x, x)))]
    if kind == "layer":
        sums.append(compute.reduce("sum", x))
    return compute.store(torch.cat(sums, dim=-1), out_dtype)


def packed_squares(x: Tensor, *, compute: Compute, out_dtype: str = "bfloat16") -> Tensor:
    """Return the sum of squares (..., 1) that ``wan_fused_rmsnorm_pre_allgather`` hands to the gather.

    The packer adds the squares of all tiles of a row in L1, as wide as the destination, then one tile is reduced.

    Args:
        x: float32 (..., N / devices).
        compute: of the operation.
        out_dtype: of the statistics.

    Source: the wheel's `rmsnorm_pre_allgather.cpp`; how wide L1's tile is, the host says, whose source isn't there.
    """
    tiles = zeros_to(compute.mul(x, x), -1, TILE).unflatten(-1, (-1, TILE))
    total = compute.store(tiles[..., 0, :])
    for index in range(1, tiles.shape[-2]):
        added = tiles[..., index, :]
        total = accumulate(total, added, dtype=compute.l1_dtype, fp32_dest_acc_en=compute.fp32_dest_acc_en)
    return compute.store(compute.reduce("sum", total), out_dtype)


def from_statistics(
    x: Tensor,
    gathered: Tensor,
    width: int,
    affine: tuple[Tensor | None, Tensor | None] = (None, None),
    *,
    kind: str = "layer",
    eps: float = 1e-5,
    compute: Compute = DISTRIBUTED_NORM,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return a device's part of a distributed norm, ``layer_norm_post_all_gather``.

    Args:
        x: float32 (..., N / devices).
        gathered: the :func:`statistics` of all devices side by side.
        width: N, of all devices together.
        affine: weight and bias, (N / devices,) each.
        kind, eps, compute, out_dtype: as of :func:`distributed_norm`.
    """
    parts = gathered.unflatten(-1, (-1, 2 if kind == "layer" else 1))
    means = [compute.store(compute.reduce("sum", sums, scaler=1.0 / width)) for sums in parts.unbind(-1)]
    power = means[0]
    centred = x
    if kind == "layer":
        power = compute.store(compute.sub(power, compute.store(compute.mul(means[1], means[1]))))
        centred = compute.store(compute.sub(x, means[1]))
    return _normed(centred, power, compute, eps, affine, out_dtype)


def from_moments(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    affine: tuple[Tensor | None, Tensor | None] = (None, None),
    *,
    eps: float = 1e-5,
    compute: Compute = LAYER_NORM,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return what the end of a layer norm makes of ``x`` (..., N), its mean and variance (..., 1)."""
    centred = compute.store(compute.sub(x, mean))
    return _normed(centred, variance, compute, eps, affine, out_dtype)


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    moments: tuple[Tensor, Tensor] | None = None,
    eps: float = 1e-5,
    compute: Compute = RMS_NORM,
    out_dtype: str = "bfloat16",
) -> Tensor:
    """Return ``ttnn.group_norm`` of float32 (B, C, ...).

    Args:
        x: channels are the columns of the tiles, places their rows.
        groups: a divisor of C.
        weight, bias: (C,).
        moments: mean and variance (B, groups), packed before they are used: those of ``use_welford``, which the vector
            unit takes, or of :func:`summed_moments`, which the matrix unit does, by default on a single core.
        eps, compute, out_dtype: as of :func:`layer_norm`.

    Raises:
        UserError: C is no multiple of ``groups``.
    """
    values = _by_group(x, groups)
    if moments is None:
        moments = summed_moments(x, groups, compute=compute)
    mean, variance = (compute.store(moment[..., None, None]) for moment in moments)
    affine = tuple(None if each is None else each.reshape(groups, 1, -1) for each in (weight, bias))
    return from_moments(values, mean, variance, affine, eps=eps, compute=compute, out_dtype=out_dtype).mT.reshape(
        x.shape
    )


def summed_moments(
    x: Tensor, groups: int, *, cores: int = 1, blocks: int | None = 1, compute: Compute = RMS_NORM
) -> tuple[Tensor, Tensor]:
    """Return the packed mean and variance (B, groups) of float32 (B, C, ...): each core's, then the mean of those.

    A core adds up what its blocks are of its own mean, each packed. Zeros fill up its last tile.

    Args:
        x, groups, compute: as of :func:`group_norm`.
        cores: share the places of a group, as many tiles each.
        blocks: of a core's places (``num_out_blocks``), each of whole tiles, which are reduced one after the other;
            None for the kernel of a sharded tensor, which adds up a core's tiles and reduces their sum.

    Raises:
        UserError: C is no multiple of ``groups``.
    """
    values = _by_group(x, groups)
    mean = _mean_of_cores(values, cores, blocks, compute)
    centred = compute.store(compute.sub(values, mean))
    if blocks is not None:
        centred = compute.store(compute.mul(centred, centred))
    variance = _mean_of_cores(centred, cores, blocks, compute, squared=blocks is None)
    return mean[..., 0, 0], variance[..., 0, 0]


def _by_group(x: Tensor, groups: int) -> Tensor:
    """Return (B, C, ...) as (B, groups, places, channels of a group)."""
    batch, channels = x.shape[:2]
    if channels % groups:
        raise UserError(f"{channels} channels are no multiple of {groups} groups; choose a divisor.")
    return x.reshape(batch, groups, channels // groups, -1).mT


def _mean_of_cores(x: Tensor, cores: int, blocks: int | None, compute: Compute, *, squared: bool = False) -> Tensor:
    """Return the packed mean (..., 1, 1) of (..., M, N): one core gathers what all have packed of their blocks."""
    share = cores / x.shape[-2:].numel()
    shares = zeros_to(x, -2, TILE * cores).unflatten(-2, (cores, -1))
    if blocks is None:
        parts = [_tiles_added(shares, compute, squared)]
    else:
        rows = max(1, shares.shape[-2] // TILE // blocks) * TILE
        parts = list(shares.split(rows, -2))
    packed = [compute.store(compute.reduce("sum", part, "both", share)) for part in parts]
    if blocks is None and cores == 1:
        return packed[0][..., 0, :, :]
    gathered = torch.stack([block[..., 0, 0] for block in packed], -2).flatten(-2)
    return compute.store(compute.reduce("sum", _in_slots(gathered), "both", 1.0 / cores))


def _tiles_added(x: Tensor, compute: Compute, squared: bool) -> Tensor:
    """Return the packed sum (..., 32, 32) of the tiles of (..., M, N), times one or themselves, in one destination.

    Of both levels by the formula of ``fast``.
    """
    tiles = zeros_to(zeros_to(x, -1, TILE), -2, TILE).unflatten(-2, (-1, TILE)).unflatten(-1, (-1, TILE))
    phases = FIDELITIES.index(compute.fidelity) + 1
    dest = torch.zeros_like(tiles[..., 0, :, 0, :])
    for row, column in itertools.product(range(tiles.shape[-4]), range(tiles.shape[-2])):
        tile = tiles[..., row, :, column, :]
        for b, a in slices(tile if squared else torch.ones_like(tile), tile)[:phases]:
            dest = dest + b * a if compute.fp32_dest_acc_en else add_to_bf16(dest, b * a)
    return compute.store(dest)


def _in_slots(x: Tensor) -> Tensor:
    """Return tiles (..., 32 tiles, 32) in whose memory, face by face, each ``SLOT``-th value is of (..., n)."""
    memory = zeros_to(torch.nn.functional.pad(x[..., None], (0, SLOT - 1)).flatten(-2), -1, TILE * TILE)
    half = TILE // 2
    return memory.unflatten(-1, (-1, 2, 2, half, half)).transpose(-3, -2).reshape(*x.shape[:-1], -1, TILE)


def softmax(x: Tensor, *, compute: Compute = SOFTMAX, stable: bool = True, out_dtype: str = "bfloat16") -> Tensor:
    """Return ``ttnn.softmax`` of float32 (..., N) over the last dim; ``stable`` subtracts the largest value first."""
    if stable:
        largest = compute.store(compute.reduce("max", x))
        x = compute.sub(x, largest)
    powers = compute.store(compute.sfpu("exp", x))
    total = compute.reduce("sum", powers)
    inverse = compute.store(compute.sfpu("reciprocal", total))
    return compute.store(compute.mul(powers, inverse), out_dtype)
