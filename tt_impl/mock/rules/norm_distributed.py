"""Layer and RMS norms whose columns are cut over devices.

A distributed norm is three steps: ``pre`` makes statistics of the local columns, an all-gather lays the statistics
of all ranks side by side, ``post`` combines them. Statistics are one tile (32 columns) per quantity and rank, the
value in the first column. Which quantities depends on the operands:

=====================  ==========================  ==================
operands               layer norm                  RMS norm
=====================  ==========================  ==================
interleaved            sum x^2, sum x              sum x^2
sharded                mean x, mean x^2            mean x^2
with Welford's method  mean x, variance            not available
=====================  ==========================  ==================

A sharded ``pre`` with a residual leaves the sum in the buffer of its input.

Legend: N rows, D local columns, H heads, E columns of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import ttnn
from torch import Tensor

from tt_impl.mock.rules.collectives import gathered
from tt_impl.mock.rules.norm import affine, check_reciprocals, rms
from tt_impl.mock.rules.registry import TILE, Call, across, nobodys, per_device
from tt_impl.mock.storage.values import Shards


def tiles_of(*columns: Tensor) -> Tensor:
    """Lay out one tile per quantity [.., N, 1], its value in the tile's first column."""
    return torch.cat([F.pad(column, (0, TILE - 1)) for column in columns], -1)


def quantities(stats: Tensor, count: int) -> tuple[list[Tensor], int]:
    """Return ``count`` quantities as [.., N, P] over the P ranks whose statistics lie side by side."""
    ranks = stats.shape[-1] // (count * TILE)
    by_rank = stats.reshape(*stats.shape[:-1], ranks, count, TILE)[..., 0]
    return [by_rank[..., i] for i in range(count)], ranks


def _is_sharded(call: Call) -> bool:
    return call.argument("input_tensor", 0).is_sharded()


def _by_welford(call: Call) -> bool:
    return bool(getattr(call.kwargs.get("program_config"), "use_welford", False))


def _with_residual(call: Call, x: Shards, residual: Shards | None) -> list[Tensor]:
    """Add both: a sharded input as its own buffer holds the sum afterwards, else as bfloat16 on its way."""
    if residual is None:
        return list(x)
    total = call.each(lambda a, b: a + b, x, residual)
    source = call.argument("input_tensor", 0)
    if _is_sharded(call):
        call.store.write(source, total, call.name)
        return list(call.store.read(source, call.name))
    return total if source.dtype == ttnn.float32 else call.each(lambda both: both.bfloat16().float(), total)


@across("layer_norm_pre_all_gather", "rms_norm_pre_all_gather")
def pre_all_gather(
    call: Call, input_tensor: Shards, *, residual_input_tensor: Shards | None = None, recip_tensor: Shards | None = None
) -> list[Tensor]:
    check_reciprocals(call, recip_tensor)
    total = _with_residual(call, input_tensor, residual_input_tensor)
    sharded = _is_sharded(call)
    welford = _by_welford(call)
    combined = torch.mean if sharded else torch.sum

    def stats(x: Tensor) -> Tensor:
        squares = combined(x.square(), -1, keepdim=True)
        if call.name.startswith("ttnn.rms_norm"):
            return tiles_of(squares)
        mean = x.mean(-1, keepdim=True)
        if sharded:
            return tiles_of(mean, squares)
        if welford:
            return tiles_of(mean, x.var(-1, correction=0, keepdim=True))
        return tiles_of(squares, x.sum(-1, keepdim=True))

    return call.each(stats, total)


@per_device("layer_norm_post_all_gather", "rms_norm_post_all_gather", with_call=True)
def post_all_gather(
    call: Call,
    input_tensor: Tensor,
    stats: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Normalise local columns by the statistics of all ranks, then scale and shift."""
    normed = _rms_normed if call.name.startswith("ttnn.rms_norm") else _layer_normed
    return affine(normed(call, input_tensor, stats, epsilon), weight, bias)


def _layer_normed(call: Call, x: Tensor, stats: Tensor, epsilon: float) -> Tensor:
    sharded = _is_sharded(call)
    if _by_welford(call) and not sharded:
        return normed_by_moments(x, stats, epsilon)
    (first, second), ranks = quantities(stats, 2)
    if sharded:
        mean = first.mean(-1, keepdim=True)
        mean_square = second.mean(-1, keepdim=True)
    else:
        mean_square, mean = (part.sum(-1, keepdim=True) / (ranks * x.shape[-1]) for part in (first, second))
    return (x - mean) * torch.rsqrt(mean_square - mean.square() + epsilon)


def _rms_normed(call: Call, x: Tensor, stats: Tensor, epsilon: float) -> Tensor:
    return normed_by_squares(x, stats, epsilon, mean_of_ranks=_is_sharded(call))


def normed_by_moments(x: Tensor, stats: Tensor, epsilon: float) -> Tensor:
    """Normalise local columns by the means and variances of all ranks, each of equally many columns."""
    (means, variances), _ = quantities(stats, 2)
    mean = means.mean(-1, keepdim=True)
    variance = variances.mean(-1, keepdim=True) + (means - mean).square().mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + epsilon)


def normed_by_squares(x: Tensor, stats: Tensor, epsilon: float, mean_of_ranks: bool = False) -> Tensor:
    """Apply RMS norm to local columns by the squares of all ranks: their sums, or their means."""
    (squares,), ranks = quantities(stats, 1)
    mean_square = squares.sum(-1, keepdim=True) / (ranks if mean_of_ranks else ranks * x.shape[-1])
    return x * torch.rsqrt(mean_square + epsilon)


@across("fused_rms_minimal")
def fused_rms_minimal(
    call: Call,
    input_tensor: Shards,
    _program_config: Any = None,
    cluster_axis: int | None = None,
    *_machinery: Any,
    residual_input_tensor: Shards | None = None,
    epsilon: float = 1e-12,
    weight: Shards | None = None,
    stats: Shards | None = None,
    **_how: Any,
) -> list[Tensor]:
    """Apply RMS norm over the columns of all ranks of an axis; the residual's buffer holds input + residual then.

    ``stats`` is where devices exchange their statistics; what it holds afterwards is nobody's business: NaN.
    """
    if unknown := set(_how) - {"global_semaphore", "use_noc1_only"}:
        raise call.unsupported(", ".join(sorted(unknown)))
    total: Any = input_tensor
    if residual_input_tensor is not None:
        summed = call.each(lambda a, b: a + b, input_tensor, residual_input_tensor)
        call.written("residual_input_tensor", summed)
        total = Shards(summed, input_tensor.shape, input_tensor.mesh_shape)
    if stats is not None:
        call.written("stats", [nobodys(stats.shape)] * len(stats))

    def normed(x: Tensor, row: Tensor, weight: Tensor | None) -> Tensor:
        return affine(rms(x, epsilon, row), weight, None)

    return call.each(normed, total, gathered(total, -1, cluster_axis), weight)
