"""What attention of every model has: queries, keys and values of a stream, and attention of local heads alone.

x --fused QKV--> q k v --norm per head--rotary--> heads of this member, cut over tp
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch.nn.functional as F

from refsim.files.checkpoint import Weights
from refsim.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads
from refsim.layers.norm import RMSNorm
from refsim.layers.rope import Rotary, apply_rotary
from refsim.parallel.ring import QKV, require
from refsim.parallel.sequence import TokenShards
from refsim.parallel.usp import joint_attention
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


class JointAttention:
    """Attention of the image tokens, and of the prompt with them where ``prompt`` is set.

    Args:
        prompt: the prompt takes part (``add_q_proj`` and so on); else image tokens attend to themselves only.
        prompt_out: the prompt's result is projected (``to_add_out``); off in a last block, which drops it. Its
            queries are projected all the same (they are part of the fused weight) but ask nothing.
        qk_norm: queries and keys are normalised per head.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        prefix: str,
        sizes: AttentionSizes,
        *,
        prompt: bool,
        prompt_out: bool,
        qk_norm: bool,
    ) -> None:
        self._device = device
        self._name = prefix
        at = (weights, device, prefix, sizes)
        self._spatial = StreamQKV(*at, norms=("norm_q", "norm_k") if qk_norm else None)
        self._prompt = None
        self._prompt_out = None
        if prompt:
            norms = ("norm_added_q", "norm_added_k") if qk_norm else None
            self._prompt = StreamQKV(*at, names=("add_q_proj", "add_k_proj", "add_v_proj"), norms=norms)
        self._out = RowParallelHeads(weights, device, f"{prefix}.to_out.0", sizes)
        if prompt_out:
            self._prompt_out = RowParallelHeads(weights, device, f"{prefix}.to_add_out", sizes)

    @in_module
    def __call__(
        self,
        spatial: MeshTensor,
        prompt: MeshTensor | None,
        *,
        tokens: TokenShards,
        prompt_tokens: TokenShards | None,
        rotary: Rotary | None = None,
        prompt_rotary: Rotary | None = None,
    ) -> tuple[MeshTensor, MeshTensor | None]:
        """Take inputs tp=Replicate (gathered) and give results tp=Shard(-1); tokens over sp stay as they came in.

        Args:
            prompt_tokens: how the prompt is cut over sp, None if it is replicated.
            rotary, prompt_rotary: what turns the queries and keys of each stream, if anything does.
        """
        qkv = self._spatial(spatial, rotary)
        prompt_qkv = None
        if self._prompt is not None and prompt is not None:
            q, k, v = self._prompt(prompt, prompt_rotary)
            prompt_qkv = (q if self._prompt_out is not None else q.with_local(q.local[:, :, :0]), k, v)
        cut = {"tokens": tokens, "prompt_tokens": prompt_tokens}
        out, prompt_out, _ = joint_attention(self._device, qkv, prompt_qkv, **cut)
        if self._prompt_out is None or prompt_out is None:
            return self._out(out), None
        return self._out(out), self._prompt_out(prompt_out)


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
