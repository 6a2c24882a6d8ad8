"""Tensor parallel after Megatron: column, then row, one reduction per pair.

    x (all features)          x (all features)
          |                         |
    W1[rows of 0]             W1[rows of 1]        column-parallel: out features cut, no communication
          |                         |
       activation                activation
          |                         |
    W2[:, cols of 0]          W2[:, cols of 1]     row-parallel: in features cut, result is Partial("sum")
          |_______ reduce_scatter __|              features cut again, bias added after the sum, once
          |                         |
    residual, D of 0          residual, D of 1     the residual stream lives cut: tp=Shard(-1)
          |_______ all_gather ______|              before the next column-parallel linear

Fused QKV: one column-parallel linear whose out features are reshuffled so that each device's share is
``[q of its heads | k of its heads | v of its heads]``:

    full     q0 q1 q2 q3  k0 k1 k2 k3  v0 v1 v2 v3        (heads)
    device 0 q0 q1 k0 k1 v0 v1      device 1 q2 q3 k2 k3 v2 v3

Padding (38 heads -> 40, 2432 features -> 2560): padded out features have zero weight rows and zero bias, padded in
features zero weight columns, so whatever stands in those of x adds nothing, and those of the result are zero.

Bytes sent per member and pair, B = bytes of x with all (padded) features: reduce_scatter ``(n-1)/n * B`` plus
all_gather's formula with ``B/n``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.ccl import all_gather, reduce_scatter
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.tensor import MeshTensor, Partial, Replicate, Shard, add, shards


def shard_range(padded: int, group: Group) -> tuple[int, int]:
    """Return the features [start, stop) of a padded feature dim that this member of the group holds."""
    size = padded // group.size
    return group.index * size, (group.index + 1) * size


def column_linear(device: Device, x: MeshTensor, weight: Tensor, bias: Tensor | None) -> MeshTensor:
    """Multiply x tp=Replicate by a weight (out/tp, in) to tp=Shard(-1)."""
    x.require("column_linear", tp=Replicate())
    return x.with_local(local_linear(device, x.local, weight, bias), **_cut(device, x.local))


def fused_column_linear(
    device: Device, x: MeshTensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> MeshTensor:
    """Run column-parallel linears of one input as the device does: one op, out features one after the other.

    The weights are not concatenated: each stays the memory-mapped slice of the checkpoint that ranks share.
    """
    x.require("column_linear", tp=Replicate())
    with device.compute("linear", x.local, *weights):
        out = torch.cat([F.linear(x.local, w, b) for w, b in zip(weights, biases, strict=True)], -1)
    return x.with_local(out, **_cut(device, x.local))


def row_linear(device: Device, x: MeshTensor, weight: Tensor, bias: Tensor | None, *, name: str = "") -> MeshTensor:
    """Multiply x tp=Shard(-1) by a weight (out, in/tp) to tp=Shard(-1) by way of Partial("sum"); bias (out/tp,).

    ``name``: of the layer, under which the term is observed.
    """
    x.require("row_linear", **shards(device.groups, tp=x.local.ndim - 1))
    partial = x.with_local(local_linear(device, x.local, weight, None), tp=Partial("sum"))
    result = reduce_scatter_features(device, partial)
    if name:
        device.observe(f"{name}.term", partial)
    return result if bias is None else result.map("bias", lambda y: add(y, bias))


def reduce_scatter_features(device: Device, x: MeshTensor) -> MeshTensor:
    """Sum tp=Partial("sum") to tp=Shard(-1)."""
    x.require("reduce_scatter", tp=Partial("sum"))
    dim = x.local.ndim - 1
    local = reduce_scatter(device, x.local, device.groups["tp"], dim=dim)
    return x.with_local(local, **_cut(device, local))


def gather_features(device: Device, x: MeshTensor) -> MeshTensor:
    """Gather tp=Shard(-1) to tp=Replicate, padded features included."""
    dim = x.local.ndim - 1
    x.require("all_gather", **shards(device.groups, tp=dim))
    return x.with_local(all_gather(device, x.local, device.groups["tp"], dim=dim), tp=Replicate())


def split_heads(x: MeshTensor, head_dim: int) -> MeshTensor:
    """Map (B, N, H * E) to (B, H, N, E): a cut of whole heads, dim 2, becomes dim 1, and tokens become dim 2."""
    return x.moved("split_heads", x.local.unflatten(-1, (-1, head_dim)).transpose(1, 2), {0: 0, 1: 2, 2: 1})


def concat_heads(x_BHNE: MeshTensor) -> MeshTensor:
    """Map (B, H, N, E) to (B, N, H * E), which is ``split_heads`` backwards."""
    return x_BHNE.moved("concat_heads", x_BHNE.local.transpose(1, 2).flatten(2), {0: 0, 1: 2, 2: 1})


def _cut(device: Device, x: Tensor) -> dict:
    return {"tp": Shard(x.ndim - 1) if device.groups["tp"].size > 1 else Replicate()}


def local_linear(device: Device, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply the local features by the local part of the weight: what a device does between two collectives."""
    with device.compute("linear", x, weight):
        return F.linear(x, weight, bias)
