"""GroupNorm whose statistics are those of the whole picture, however it is cut.

    local pixels --> (count, mean, M2) per group --all_gather over columns, then rows; merged--> the picture's

Bytes sent per member: 12 (n - 1) per sample, group of channels and member of either group of devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.ccl import all_gather
from refsim.files.checkpoint import Weights
from refsim.parallel.halo import ImageShards
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device, in_module
from refsim.runtime.kernels import kernel


class GroupNorm:
    """Of (B, C, [T,] local H, local W); exact, padding counts for nothing.

    Args:
        cut: channels are cut over tp, whole groups of them on every member.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        channels: int,
        groups: int,
        cut: bool = False,
        eps: float = 1e-6,
    ) -> None:
        tp = device.groups["tp"]
        self._device = device
        self._name = name
        self._eps = eps
        self._groups = groups // tp.size if cut else groups
        mine = shard_range(channels, tp) if cut else None
        self._weight, self._bias = (weights.take(f"{name}.{n}", (channels,), mine) for n in ("weight", "bias"))

    @in_module
    def __call__(self, x: Tensor, shards: ImageShards) -> Tensor:
        with self._device.compute("group_norm", x, channels_dim=1):
            return self._normalize(x, shards)

    def _normalize(self, x: Tensor, shards: ImageShards) -> Tensor:
        height, width = shards.real(self._device)
        y = x.float().unflatten(1, (self._groups, -1))  # (B, G, C/G, [T,] H, W)
        pixels = y[..., :height, :width].flatten(2)
        count = torch.full((*pixels.shape[:2], 1), float(pixels.shape[2]))
        mean = pixels.sum(-1, keepdim=True) / count.clamp(min=1)
        stats = torch.cat([count, mean, (pixels - mean).square().sum(-1, keepdim=True)], -1)
        for group in (shards.across(self._device), self._device.groups["sp"]):
            stats = merge_statistics(all_gather(self._device, stats.unsqueeze(0), group, dim=0))
        count, mean, m2 = (s.view(*s.shape[:2], *(1,) * (y.ndim - 2)) for s in stats.split(1, -1))
        weight, bias = (p.view(-1, *(1,) * (x.ndim - 2)) for p in (self._weight, self._bias))
        return _normed(y, (mean, m2 / count), weight, bias, self._eps).to(x.dtype)


@kernel("group_norm")
def _normed(y: Tensor, statistics: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Norm (B, G, C/G, ...) by mean and variance of the picture's groups; (B, C, ...)."""
    mean, variance = statistics
    return ((y - mean) * torch.rsqrt(variance + eps)).flatten(1, 2) * weight + bias


def merge_statistics(stats_PBG3: Tensor) -> Tensor:
    """Return (count, mean, M2) of all members together, (B, G, 3), from those of each, (P, B, G, 3)."""
    count, mean, m2 = stats_PBG3.split(1, -1)
    total = count.sum(0)
    whole = (count * mean).sum(0) / total.clamp(min=1)  # a row of members may hold padding only
    return torch.cat([total, whole, (m2 + count * (mean - whole).square()).sum(0)], -1)
