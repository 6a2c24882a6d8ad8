"""Layer, RMS and group norms, whole and distributed, and softmax.

Welford's mean and variance (``dit_layernorm``, ``use_welford``) are taken exactly and packed: the vector unit keeps
them in fp32.
Sharded statistics of a distributed norm have another kernel, which is not known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import ttnn
from torch import Tensor

from refsim.numerics.composites import Compute, norms
from refsim.numerics.composites.fused_norms import DIT
from tt_impl.mock.numerics.attention import rotate
from tt_impl.mock.numerics.eltwise import activated
from tt_impl.mock.numerics.kernel import Kernel, Unmodelled, computing, rounded
from tt_impl.mock.rules.heads import split_heads
from tt_impl.mock.rules.norm import row
from tt_impl.mock.rules.norm_distributed import quantities, tiles_of
from tt_impl.mock.rules.registry import TILE
from tt_impl.mock.rules.softmax import mask_of
from tt_impl.mock.storage.values import Shards

BLOCK_OF_GROUP_NORM = 2**16
"""Values of a block that ``num_out_blocks=-1`` aims at."""


def normed(
    kernel: Kernel, x: Tensor, epsilon: float, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None,
    centred: bool, activation: Any = None,
) -> Tensor:  # fmt: skip
    """Compute ``layer_norm`` or ``rms_norm``, of the sum with a residual if there is one, and an activation."""
    compute = kernel.compute(norms.LAYER_NORM if centred else norms.RMS_NORM)
    if residual is not None:
        x = compute.store(compute.add(x, residual))
    affine = tuple(None if values is None else row(values, x) for values in (weight, bias))
    how: dict[str, Any] = {"eps": epsilon, "compute": compute, "out_dtype": _dtype_before(kernel, compute, activation)}
    if not centred:
        result = norms.rms_norm(x, *affine, **how)
    elif kernel.is_welford:
        result = norms.from_moments(x, *_packed_moments(compute, x), affine, **how)
    else:
        result = norms.layer_norm(x, *affine, **how)
    return _activated(kernel, compute, result, activation)


def _dtype_before(kernel: Kernel, compute: Compute, activation: Any) -> str:
    """Return what leaves the destination as it is where an activation follows, else the output's dtype."""
    return kernel.out_dtype if activation is None else compute.l1_dtype


def _activated(kernel: Kernel, compute: Compute, x: Tensor, activation: Any) -> Tensor:
    return x if activation is None else kernel.pack(compute, activated(compute, x, activation))


def _packed_moments(compute: Compute, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of rows as Welford's method leaves them, packed."""
    return compute.store(x.mean(-1, keepdim=True)), compute.store(x.var(-1, correction=0, keepdim=True))


computing("layer_norm", "rms_norm", "experimental.dit_rms_norm_unary_fused", normed=normed)


def _on_interleaved(kernel: Kernel) -> None:
    if kernel.call.argument("input_tensor", 0).is_sharded():
        raise Unmodelled("sharded")


def _kind(kernel: Kernel) -> str:
    return "layer" if "layer_norm" in kernel.call.name else "rms"


@rounded("layer_norm_pre_all_gather", "rms_norm_pre_all_gather")
def pre_all_gather(kernel: Kernel, input_tensor: Shards, *, recip_tensor: Any = None) -> list[Tensor]:
    _on_interleaved(kernel)
    compute = kernel.compute(norms.DISTRIBUTED_NORM)

    def stats(x: Tensor) -> Tensor:
        if kernel.is_welford:
            return compute.store(tiles_of(*_packed_moments(compute, x)), kernel.out_dtype)
        sums = norms.statistics(x, kind=_kind(kernel), compute=compute, out_dtype=kernel.out_dtype)
        return tiles_of(*sums.split(1, -1))

    return kernel.call.each(stats, input_tensor)


@rounded("layer_norm_post_all_gather", "rms_norm_post_all_gather")
def post_all_gather(
    kernel: Kernel,
    input_tensor: Shards,
    stats: Shards,
    *,
    epsilon: float = 1e-12,
    weight: Shards | None = None,
    bias: Shards | None = None,
) -> list[Tensor]:
    _on_interleaved(kernel)
    compute = kernel.compute(norms.DISTRIBUTED_NORM)
    kind = _kind(kernel)

    def finished(x: Tensor, stats: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        affine = (None if weight is None else row(weight, x), None if bias is None else row(bias, x))
        if kernel.is_welford:
            return dit_normed(kernel, x, stats, epsilon, *affine, default=norms.DISTRIBUTED_NORM)
        sums, ranks = quantities(stats, 2 if kind == "layer" else 1)
        gathered = torch.stack(sums, -1).flatten(-2)
        how: dict[str, Any] = {"kind": kind, "eps": epsilon, "compute": compute, "out_dtype": kernel.out_dtype}
        return norms.from_statistics(x, gathered, ranks * x.shape[-1], affine, **how)

    return kernel.call.each(finished, input_tensor, stats, weight, bias)


@rounded("experimental.dit_layernorm_pre_allgather")
def dit_pre_all_gather(kernel: Kernel, input_tensor: Shards, recip_tensor: Any) -> list[Tensor]:
    compute = kernel.compute(DIT)

    def stats(x: Tensor) -> Tensor:
        return compute.store(tiles_of(*_packed_moments(compute, x)), kernel.out_dtype)

    return kernel.call.each(stats, input_tensor)


def dit_normed(
    kernel: Kernel, x: Tensor, stats: Tensor, epsilon: float, weight: Tensor | None, bias: Tensor | None,
    default: Compute = DIT,
) -> Tensor:  # fmt: skip
    """Normalise local columns by the moments of all ranks, which are combined exactly and packed."""
    compute = kernel.compute(default)
    (means, variances), _ = quantities(stats, 2)
    mean = means.mean(-1, keepdim=True)
    variance = variances.mean(-1, keepdim=True) + (means - mean).square().mean(-1, keepdim=True)
    return norms.from_moments(
        x, compute.store(mean), compute.store(variance), (weight, bias), eps=epsilon, compute=compute,
        out_dtype=kernel.out_dtype,
    )  # fmt: skip


computing("experimental.dit_layernorm_post_allgather", normed=dit_normed)


@rounded("experimental.wan_fused_rmsnorm_pre_allgather")
def wan_pre_all_gather(kernel: Kernel, input_tensor: Shards) -> list[Tensor]:
    compute = kernel.compute(DIT)
    return kernel.call.each(
        lambda x: tiles_of(norms.packed_squares(x, compute=compute, out_dtype=kernel.out_dtype)), input_tensor
    )


@rounded("experimental.wan_fused_rmsnorm_post_allgather")
def wan_post_all_gather(
    kernel: Kernel,
    input_tensor: Shards,
    stats: Shards,
    *,
    epsilon: float = 1e-5,
    num_heads_per_device: int = 1,
    weight: Shards | None = None,
    **rope: Shards | None,
) -> list[Tensor]:
    """Normalise columns of all ranks, as heads; rotated with every product packed if ``rope`` has cos and sin."""
    compute = kernel.compute(DIT)
    tables = [rope.get(name) for name in ("rope_cos", "rope_sin", "transformation_mat")]

    def finished(x: Tensor, stats: Tensor, weight: Tensor | None, *tables: Any) -> Tensor:
        (squares,), ranks = quantities(stats, 1)
        dtype = kernel.out_dtype if tables[0] is None else compute.l1_dtype
        affine = (None if weight is None else row(weight, x), None)
        how: dict[str, Any] = {"kind": "rms", "eps": epsilon, "compute": compute, "out_dtype": dtype}
        normed = norms.from_statistics(x, squares, ranks * x.shape[-1], affine, **how)
        heads = split_heads(normed, num_heads_per_device)
        if tables[0] is None:
            return heads
        return compute.store(rotate(kernel, heads, *tables, dtype=dtype), kernel.out_dtype)

    return kernel.call.each(finished, input_tensor, stats, weight, *tables)


def softmax(kernel: Kernel, x: Tensor, dim: int, stable: bool) -> Tensor:
    """Compute softmax along any dim, as along the last one."""
    compute = kernel.compute(_softmax_default(kernel))
    return norms.softmax(x.movedim(dim, -1), compute=compute, stable=stable, out_dtype=kernel.out_dtype).movedim(
        -1, dim
    )


def _softmax_default(kernel: Kernel) -> Compute:
    return replace(norms.SOFTMAX, fp32_dest_acc_en=kernel.out_dtype == "float32")


def masked_softmax(
    kernel: Kernel, x: Tensor, scale: float | None, mask: Tensor | None, by_row: bool, stable: bool = True
) -> Tensor:
    """Compute softmax(scale * x + mask), each packed before the next."""
    compute = kernel.compute(_softmax_default(kernel))
    if scale is not None:
        x = compute.store(compute.mul(x, torch.tensor(scale).bfloat16().float()))
    if mask is not None:
        x = compute.store(compute.add(x, mask_of(mask, x, by_row)))
    return softmax(kernel, x, -1, stable)


computing("softmax", "softmax_in_place", normalised=softmax)
computing(
    "scale_mask_softmax",
    "scale_mask_softmax_in_place",
    "scale_causal_mask_hw_dims_softmax_in_place",
    "transformer.attention_softmax",
    "transformer.attention_softmax_",
    masked_softmax=masked_softmax,
)


def group_normed(
    kernel: Kernel, x: Tensor, groups: int, epsilon: float, weight: Tensor | None, bias: Tensor | None,
    pixels: Tensor | None = None, activation: Any = None,
) -> Tensor:  # fmt: skip
    """Normalise [N, 1, H*W, C] by groups of channels, of all ``pixels`` where others have some; then activate."""
    if not x.numel():
        return x
    compute = kernel.compute(norms.RMS_NORM if pixels is None else DIT)
    channels_first = x.squeeze(1).mT
    if kernel.is_welford or pixels is not None:
        by_group = (x if pixels is None else pixels).unflatten(-1, (groups, -1))
        moments = by_group.mean((1, 2, 4)), by_group.var((1, 2, 4), correction=0)
    else:
        cores, blocks = _shares(kernel, groups)
        moments = norms.summed_moments(channels_first, groups, cores=cores, blocks=blocks, compute=compute)
    weight, bias = (None if values is None else values.reshape(-1) for values in (weight, bias))
    result = norms.group_norm(
        channels_first, groups, weight, bias, moments=moments, eps=epsilon, compute=compute,
        out_dtype=_dtype_before(kernel, compute, activation),
    )  # fmt: skip
    return _activated(kernel, compute, result.mT.unsqueeze(1), activation)


def _shares(kernel: Kernel, groups: int) -> tuple[int, int | None]:
    """Return how many cores share the pixels of a sample, and in how many blocks each does; None of a shard."""
    tensor = kernel.call.argument("input_tensor", 0)
    batch, _, pixels, channels = tensor.padded_shape
    spec = tensor.memory_config().shard_spec
    if spec is not None:
        if spec.shape[1] < channels // groups:
            raise Unmodelled("a group on several columns of cores")
        return -(-pixels // spec.shape[0]), None
    grid = kernel.call.kwargs.get("core_grid")
    blocks = kernel.call.kwargs.get("num_out_blocks")
    if grid is None:
        blocks = -1
        grid = ttnn.determine_expected_group_norm_dram_grid_size(
            device=tensor.device(), num_channels=channels, num_groups=groups, input_nhw=batch * pixels,
            num_batches=batch,
        )  # fmt: skip
    # One column fits at any rate: ttnn takes no channels that are less than whole tiles once padded.
    fitting = (n for n in range(min(grid.x, groups), 0, -1) if channels // n % TILE == 0 and groups % n == 0)
    columns = next(fitting)
    rows = grid.x // columns * grid.y
    if blocks == -1:
        values = pixels * channels // (BLOCK_OF_GROUP_NORM * columns * rows)
        blocks = 1 << (min(max(values, 1), 256) - 1).bit_length()
    return -(-rows // batch), blocks or 1


computing("group_norm", "experimental.dit_fused_distributed_groupnorm", normed=group_normed)
