"""Joint attention of image and prompt, heads cut over tp, tokens over sp.

image  --fused QKV--> q k v --RMSNorm per head--.                                  .--> out row-parallel
prompt --fused QKV--> q k v --RMSNorm per head--+--> joint attention over sp ------+--> out row-parallel
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from refsim.files.checkpoint import Weights
from refsim.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads
from refsim.layers.norm import RMSNorm
from refsim.parallel.ring import QKV, require
from refsim.parallel.sequence import TokenShards
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor, Replicate, shards

_EPS = 1e-6


class _Projection:
    """q, k, v of one stream, (B, local heads, rows, E), queries and keys normalised per head."""

    def __init__(
        self,
        weights: Weights,
        device: Device,
        prefix: str,
        sizes: AttentionSizes,
        *,
        names: tuple[str, str, str],
        norms: tuple[str, str] | None,
    ) -> None:
        self._qkv = ColParallelQKV(weights, device, tuple(f"{prefix}.{n}" for n in names), sizes)
        norm = {"features": sizes.head_dim, "eps": _EPS}
        self._norms = [RMSNorm(weights, device, f"{prefix}.{n}", **norm) for n in norms or ()]

    def __call__(self, x: MeshTensor) -> QKV:
        q, k, v = self._qkv(x)
        if self._norms:
            q, k = self._norms[0].of_heads(q), self._norms[1].of_heads(k)
        return q, k, v


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
        self._device, self._name = device, prefix
        at = (weights, device, prefix, sizes)
        norms = (("norm_q", "norm_k"), ("norm_added_q", "norm_added_k")) if qk_norm else (None, None)
        self._spatial = _Projection(*at, names=("to_q", "to_k", "to_v"), norms=norms[0])
        self._prompt = self._prompt_out = None
        if prompt:
            names = ("add_q_proj", "add_k_proj", "add_v_proj")
            self._prompt = _Projection(*at, names=names, norms=norms[1])
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
    ) -> tuple[MeshTensor, MeshTensor | None]:
        """Take inputs tp=Replicate (gathered) and give results tp=Shard(-1); tokens over sp stay as they came in.

        Args:
            prompt_tokens: how the prompt is cut over sp, None if it is replicated.
        """
        qkv, prompt_qkv = self._spatial(spatial), None
        if self._prompt is not None and prompt is not None:
            q, k, v = self._prompt(prompt)
            prompt_qkv = (q if self._prompt_out is not None else q.with_local(q.local[:, :, :0]), k, v)
        out, prompt_out, _ = joint_attention(
            self._device,
            qkv,
            prompt_qkv,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
        )
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
