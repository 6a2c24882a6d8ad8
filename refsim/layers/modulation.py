"""AdaLN-Zero: shift, scale and gate chunks from the time embedding, each cut over tp like the residual stream; and the
last layers, which take a shift and a scale of whole rows."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.linear import Linear
from refsim.layers.norm import LayerNorm
from refsim.parallel.padding import padded_features
from refsim.parallel.sequence import TokenShards, gather_tokens
from refsim.parallel.tensor import gather_features, shard_range
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor, Replicate, Shard, add


class Modulation:
    """One linear D -> chunks * D whose chunks are cut one by one, so that a device gets its features of every chunk.

    The time embedding is replicated, so no communication is needed. Padded features are zero.

    Args:
        in_features: of the time embedding, where it is not as wide as the stream.
        bias: the linear has one.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        features: int,
        chunks: int,
        in_features: int | None = None,
        bias: bool = True,
    ) -> None:
        self._device = device
        self._name = name
        self._features = features
        tp = device.groups["tp"]
        self._split = tp.size > 1
        start, stop = shard_range(padded_features(features, tp.size), tp)
        # a chunk's padding must not reach into the next chunk, so the real features are taken and padded one by one
        self._padding = max(0, stop - max(features, start))
        stop = min(stop, features)
        shape = (chunks * features, in_features or features)
        rows = [(c * features + min(start, stop), c * features + stop) for c in range(chunks)]
        self._weights = [weights.take(f"{name}.weight", shape, r) for r in rows]
        self._biases = [weights.take(f"{name}.bias", shape[:1], r) if bias else None for r in rows]

    @in_module
    def __call__(self, time_BD: Tensor | MeshTensor) -> list[MeshTensor]:
        """Map ``time_BD`` with silu applied, tp=Replicate, to (B, 1, local D) per chunk, tp=Shard(-1).

        A time embedding for every token, (B, N, D), gives (B, N, local D), tokens cut over sp as they came in.
        """
        time = time_BD if isinstance(time_BD, MeshTensor) else MeshTensor(time_BD)
        time.require("modulation", tp=Replicate())
        placement = {"tp": Shard(2) if self._split else Replicate()}
        chunks = []
        for index, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            chunks.append(time.with_local(self._chunk(time.local, weight, bias), **placement))
            first = index * self._features
            self._device.observe(f"{self._name}@{first}:{first + self._features}", chunks[-1])
        return chunks

    def _chunk(self, time: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the local features of one chunk, (B, 1 or N, local D)."""
        padded = F.pad(F.linear(time, weight, bias), (0, self._padding))
        return padded if time.ndim == 3 else padded.unsqueeze(1)


def modulate(x: MeshTensor, shift: MeshTensor | None, scale: MeshTensor) -> MeshTensor:
    """Return ``x * (1 + scale) + shift``; without a shift, what is scaled."""
    scaled = x * scale.map("1 + scale", lambda s: add(s, 1))
    return scaled if shift is None else scaled + shift


class ModulatedOutput:
    """The last layers (``norm_out``, ``proj_out``): a norm scaled and shifted by the time embedding, then a linear.

    Features are gathered over tp before, tokens over sp after. ``bias``: both linears have one.
    """

    def __init__(
        self, weights: Weights, device: Device, *, features: int, out_features: int, eps: float, bias: bool = True
    ) -> None:
        self._device = device
        self._norm = LayerNorm(device, features=features, eps=eps)
        self._mod = Linear(weights, "norm_out.linear", in_features=features, out_features=2 * features, bias=bias)
        self._proj = Linear(weights, "proj_out", in_features=features, out_features=out_features, bias=bias)

    def __call__(self, x_BNL: MeshTensor, silu_time_BD: Tensor, tokens: TokenShards) -> Tensor:
        """Map (B, local N, local D), sp=Shard(1) and tp=Shard(2), to (B, N, out features) on every device."""
        self._device.stage()
        with self._device.module("norm_out"):
            scale, shift = self._mod(silu_time_BD).unsqueeze(1).chunk(2, -1)
            gathered = gather_features(self._device, x_BNL)
            normed = gathered.map("norm_out", lambda x: self._norm(x) * (1 + scale) + shift)
        with self._device.module("proj_out"):
            out_BNC = normed.map("proj_out", self._proj)
            return gather_tokens(self._device, out_BNC, tokens, dim=1).local
