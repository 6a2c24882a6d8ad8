"""What attention of every model has: queries, keys and values of a stream, and attention of local heads alone.

x --fused QKV--> q k v --norm per head--rotary--> heads of this member, cut over tp
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch.nn.functional as F

from refsim.files.checkpoint import Weights
from refsim.layers.linear import AttentionSizes, ColParallelQKV
from refsim.layers.norm import RMSNorm
from refsim.layers.rope import Rotary, apply_rotary
from refsim.parallel.ring import QKV, require
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor, Replicate, shards


class HeadNorm(Protocol):
    """A norm of every head of (B, local heads, rows, E)."""

    def of_heads(self, x_BHNE: MeshTensor) -> MeshTensor: ...


RMS_NORM: Callable[..., HeadNorm] = partial(RMSNorm, eps=1e-6)


def turned(device: Device, qkv: QKV, norms: Sequence[HeadNorm], rotary: Rotary | None) -> QKV:
    """Norm queries and keys, where there are norms, and turn them by their positions, where there are tables."""
    q, k, v = qkv
    if norms:
        q, k = (norm.of_heads(y) for norm, y in zip(norms, (q, k), strict=True))
    if rotary is not None:
        q, k = (y.map("rope", lambda x_BHNE: apply_rotary(device, x_BHNE, *rotary)) for y in (q, k))
    return q, k, v


class StreamQKV:
    """q, k, v of one stream, (B, local heads, rows, E); q and k normalised per head, then turned by their positions.

    Args:
        names: of the linears of q, k and v.
        norms: names of the norms of q and k; None for none.
        norm: makes such a norm, called with weights, device, name and ``features``.
        bias: the linears have one.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        prefix: str,
        sizes: AttentionSizes,
        *,
        names: tuple[str, str, str] = ("to_q", "to_k", "to_v"),
        norms: tuple[str, str] | None = ("norm_q", "norm_k"),
        norm: Callable[..., HeadNorm] = RMS_NORM,
        bias: bool = True,
    ) -> None:
        self._device = device
        self._name = prefix
        self._qkv = ColParallelQKV(weights, device, tuple(f"{prefix}.{n}" for n in names), sizes, bias=bias)
        self._norms = [norm(weights, device, f"{prefix}.{n}", features=sizes.head_dim) for n in norms or ()]

    @in_module
    def __call__(self, x: MeshTensor, rotary: Rotary | None = None) -> QKV:
        """Map (B, rows, D) tp=Replicate to (B, local heads, rows, E) each, tp=Shard(1)."""
        q, k, v = self._qkv(x)
        return turned(self._device, (q, k, v), self._norms, rotary)


def local_attention(device: Device, qkv: QKV, **options: Any) -> MeshTensor:
    """Attend in one piece with the local heads to rows that every member has, for short prompts.

    Args:
        qkv: each (B, H, L, E), tp=Shard(1), sp=Replicate.
        options: of ``torch.nn.functional.scaled_dot_product_attention``.
    """
    require("local_attention's", qkv, **shards(device.groups, tp=1), sp=Replicate())
    q, k, v = (x.local for x in qkv)
    with device.compute("sdpa", q, k, v):
        return qkv[0].with_local(F.scaled_dot_product_attention(q, k, v, **options))
