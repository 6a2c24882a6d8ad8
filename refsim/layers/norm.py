"""Norms, with statistics in fp32: per head, over all heads, over gathered features, and over features cut over tp.

Every norm declares the op it is on the device (``device.compute``): the timing model prices it as that one op.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.ccl import all_gather
from refsim.files.checkpoint import Weights
from refsim.parallel.padding import padded_features, padded_heads
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device, in_module
from refsim.runtime.kernels import kernel
from refsim.runtime.tensor import MeshTensor, Shard, shards

Affine = tuple[Weights, str]
"""Where the weight and the bias of a norm stand in the checkpoint: (weights, name)."""


def over_real_features(norm: Callable[[Tensor], Tensor], x: MeshTensor, features: int) -> MeshTensor:
    """Norm the real ``features`` of a gathered tensor; padded ones behind them stay zero."""
    padding = x.local.shape[-1] - features
    return x.map("norm", lambda y: F.pad(norm(y[..., :features]), (0, padding)))


class RMSNorm:
    """Root-mean-square norm over the last dim, which is whole on every device (the features of one head)."""

    def __init__(self, weights: Weights, device: Device, name: str, *, features: int, eps: float) -> None:
        self.weight = weights.take(f"{name}.weight", (features,))
        self._device = device
        self._name = name
        self._eps = eps

    def of_heads(self, x_BHNE: MeshTensor) -> MeshTensor:
        """Norm every head of (B, local heads, N, E); the result is observed under the norm's name."""
        return self.of_rows(x_BHNE)

    def of_rows(self, x: MeshTensor) -> MeshTensor:
        """Norm every row, whose features are whole on every device; the result is observed under the norm's name."""
        normed = x.map("rms_norm", self)
        self._device.observe(self._name, normed)
        return normed

    @in_module
    def __call__(self, x: Tensor) -> Tensor:
        with self._device.compute("rms_norm", x):
            return _rms_normed(x, self.weight, self._eps)


@kernel("rms_norm")
def _rms_normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y.to(x.dtype) * weight).to(x.dtype)


class HeadLayerNorm:
    """LayerNorm with weight and bias over the features of one head, which are whole on every device."""

    def __init__(self, weights: Weights, device: Device, name: str, *, features: int, eps: float) -> None:
        self._device = device
        self._name = name
        self._eps = eps
        self._shape = (features,)
        self._weight, self._bias = (weights.take(f"{name}.{n}", self._shape) for n in ("weight", "bias"))

    @in_module
    def of_heads(self, x_BHNE: MeshTensor) -> MeshTensor:
        """Norm every head of (B, local heads, N, E); the result is observed under the norm's name."""
        normed = x_BHNE.map("layer_norm", self._normalize)
        self._device.observe(self._name, normed)
        return normed

    def _normalize(self, x: Tensor) -> Tensor:
        with self._device.compute("layer_norm", x):
            return F.layer_norm(x, self._shape, self._weight, self._bias, self._eps)


class DistributedRMSNorm:
    """Root-mean-square norm of a token over all its heads, which are cut over tp.

        local heads --> sum of squares per token --all_gather over tp--> x * rsqrt(sum / D + eps) * weight

    D counts the real heads; padded heads are zero and add nothing. The mean over the local heads instead is a
    silent error.

    Input and output (B, local heads, N, E), tp=Shard(1). Bytes: one all_gather of one fp32 per token.
    """

    def __init__(
        self, weights: Weights, device: Device, name: str, *, num_heads: int, head_dim: int, eps: float
    ) -> None:
        self._device = device
        self._name = name
        self._features = num_heads * head_dim
        self._eps = eps
        tp = device.groups["tp"]
        features = shard_range(padded_heads(num_heads, tp.size) * head_dim, tp)
        self.weight_H1E = weights.take(f"{name}.weight", (self._features,), features).view(-1, 1, head_dim)

    @in_module
    def __call__(self, x_BHNE: MeshTensor) -> MeshTensor:
        normed = self._normalize(x_BHNE)
        self._device.observe(self._name, normed)
        return normed

    def _normalize(self, x_BHNE: MeshTensor) -> MeshTensor:
        x_BHNE.require("distributed_rms_norm", **shards(self._device.groups, tp=1))
        with self._device.compute("rms_norm", x_BHNE.local):
            squares = _sum_of_squares(x_BHNE.local)
            gathered = all_gather(self._device, squares, self._device.groups["tp"], dim=-1)
            normed = _by_squares(x_BHNE.local, gathered, self.weight_H1E, self._features, self._eps)
            return x_BHNE.with_local(normed)


@kernel("rms_statistics")
def _sum_of_squares(x_BHNE: Tensor) -> Tensor:
    """Return (B, N, 1) in fp32, over the local heads."""
    return x_BHNE.float().square().sum((1, 3)).unsqueeze(-1)


@kernel("from_rms_statistics")
def _by_squares(x_BHNE: Tensor, gathered: Tensor, weight_H1E: Tensor, features: int, eps: float) -> Tensor:
    """Norm the local heads by the sums of squares of all members, (B, N, tp)."""
    scale = torch.rsqrt(gathered.sum(-1) / features + eps)
    return (x_BHNE.float() * scale[:, None, :, None] * weight_H1E).to(x_BHNE.dtype)


class LayerNorm:
    """LayerNorm over the real features of a gathered tensor; the padded ones are dropped.

    Args:
        affine: where weight and bias stand in the checkpoint; None for none.
    """

    def __init__(self, device: Device, *, features: int, eps: float, affine: Affine | None = None) -> None:
        self._device = device
        self._features = features
        self._eps = eps
        self._affine: tuple[Tensor, ...] = ()
        if affine is not None:
            weights, name = affine
            self._affine = tuple(weights.take(f"{name}.{n}", (features,)) for n in ("weight", "bias"))

    def __call__(self, x: Tensor) -> Tensor:
        with self._device.compute("layer_norm", x):
            # torch's kernel has its statistics in fp32 whatever the dtype
            return F.layer_norm(x[..., : self._features], (self._features,), *self._affine, eps=self._eps)


class DistributedLayerNorm:
    """LayerNorm over features cut over tp, exact also with padded features.

        local features --> (mean_d, M2_d) per token --all_gather over tp--> merged over the real features of all members
                                                                     --> (x - mean) / sqrt(M2 / D + eps)

    Each member counts its real features only, the merge is Chan's, and padded ones stay zero. Dividing the padded sum
    by the padded count instead is a silent error of several percent.

    Input and output tp=Shard(-1). Bytes: one all_gather of two fp32 per token.

    Args:
        affine: where weight and bias stand in the checkpoint; None for none.
        name: of the module in diffusers, under which the result is observed; by default that of ``affine``.
    """

    def __init__(
        self, device: Device, *, features: int, eps: float, affine: Affine | None = None, name: str = ""
    ) -> None:
        self._device = device
        self._features = features
        self._eps = eps
        tp = device.groups["tp"]
        self._name = name
        self._weight = None
        self._bias = None
        if affine is not None:
            weights, of = affine
            self._name = name or of
            mine = shard_range(padded_features(features, tp.size), tp)
            self._weight, self._bias = (weights.take(f"{of}.{n}", (features,), mine) for n in ("weight", "bias"))
        size = padded_features(features, tp.size) // tp.size
        self._counts = [max(0, min(features - member * size, size)) for member in range(tp.size)]
        start, _ = shard_range(size * tp.size, tp)
        self._real = max(0, min(features - start, size))

    @in_module
    def __call__(self, x: MeshTensor) -> MeshTensor:
        with self._device.compute("layer_norm", x.local):
            normed = self._normalize(x)
            if self._weight is not None:
                normed = normed.map("affine", lambda y: (y * self._weight + self._bias).to(y.dtype))
        if self._name:
            self._device.observe(self._name, normed)
        return normed

    def _normalize(self, x: MeshTensor) -> MeshTensor:
        tp = self._device.groups["tp"]
        if tp.size == 1:
            return x.map("layer_norm", LayerNorm(self._device, features=self._features, eps=self._eps))
        x.require("distributed_layer_norm", tp=Shard(x.local.ndim - 1))
        real = x.local[..., : self._real]
        stats = all_gather(self._device, _statistics(real), tp, dim=-1)
        y = _by_statistics(real, stats, self._counts, self._features, self._eps)
        return x.with_local(F.pad(y, (0, x.local.shape[-1] - self._real)))


class DistributedStreamRMSNorm:
    """Root-mean-square norm without a weight, over features cut over tp.

        local features --> sum of squares per token --all_gather over tp--> x * rsqrt(sum / D + eps)

    D counts the real features; padded ones are zero and stay zero. Input and output tp=Shard(-1). Bytes: one
    all_gather of one fp32 per token.

    Args:
        name: of the module in diffusers, under which the result is observed.
    """

    def __init__(self, device: Device, *, features: int, eps: float, name: str = "") -> None:
        self._device = device
        self._features = features
        self._eps = eps
        self._name = name

    @in_module
    def __call__(self, x: MeshTensor) -> MeshTensor:
        tp = self._device.groups["tp"]
        x.require("distributed_rms_norm", **shards(self._device.groups, tp=x.local.ndim - 1))
        with self._device.compute("rms_norm", x.local):
            squares = all_gather(self._device, _squares(x.local), tp, dim=-1)
            normed = x.map("rms_norm", lambda y: _by_sums(y, squares, self._features, self._eps))
        if self._name:
            self._device.observe(self._name, normed)
        return normed


@kernel("stream_rms_statistics")
def _squares(x: Tensor) -> Tensor:
    """Return the sum of squares of the local features of every row, (..., 1) in fp32."""
    return x.float().square().sum(-1, keepdim=True)


@kernel("from_stream_rms_statistics")
def _by_sums(x: Tensor, squares: Tensor, features: int, eps: float) -> Tensor:
    """Norm the local features by the sums of squares of all members, (..., tp)."""
    return (x.float() * torch.rsqrt(squares.sum(-1, keepdim=True) / features + eps)).to(x.dtype)


@kernel("layer_statistics")
def _statistics(real: Tensor) -> Tensor:
    """Return (mean, M2) of the real lanes of a member, (..., 2) in fp32; zeros where it has none."""
    if not real.shape[-1]:
        return torch.zeros(*real.shape[:-1], 2)
    x = real.float()
    mean = x.mean(-1, keepdim=True)
    return torch.cat([mean, (x - mean).square().sum(-1, keepdim=True)], -1)


@kernel("from_layer_statistics")
def _by_statistics(real: Tensor, stats: Tensor, counts: list[int], features: int, eps: float) -> Tensor:
    """Norm the real lanes of a member by the statistics of all members: ``counts`` lanes each, ``features`` in all."""
    mean, m2 = _merged(stats, counts)
    return ((real.float() - mean) * torch.rsqrt(m2 / features + eps)).to(real.dtype)


def _merged(stats: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    """Return (mean, M2) over all members from theirs, (..., 2 * tp)."""
    count = 0
    mean = torch.zeros_like(stats[..., :1])
    m2 = mean
    for n, part in zip(counts, stats.split(2, -1), strict=True):
        mean_d, m2_d = part.split(1, -1)
        total = count + n
        delta = mean_d - mean
        mean = mean + delta * (n / total)
        m2 = m2 + m2_d + delta.square() * (count * n / total)
        count = total
    return mean, m2
