"""Wan's two attentions: of the video over itself around the ring, and of the video over the prompt on each device.

    self    x --fused QKV--> q k v --norm over all heads--> RoPE --> ring joint attention, dummy joint --> out
    cross   x --q--> norm over all heads --.
            prompt --fused KV--> norm(k) --+--> attention of local q over the replicated prompt --> out

Heads are cut over tp, tokens over sp. Cross-attention needs no communication over sp. The prompt has no mask: its
padding rows (512 in all) are keys like the others.
"""

from __future__ import annotations

from torch import Tensor

from refsim.checkpoint import Weights
from refsim.layers.linear import ColParallelQKV, RowParallelLinear
from refsim.layers.norm import DistributedRMSNorm
from refsim.layers.rope import apply_rotary
from refsim.models.wan22.config import WanConfig
from refsim.parallel.padding import padded_heads
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.parallel.sequence import TokenShards
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Replicate, Shard


class _Attention:
    """What both have: norms of queries and keys over all heads, and the row-parallel output."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: WanConfig) -> None:
        self._device = device
        self._sizes = {"num_heads": config.num_attention_heads, "head_dim": config.attention_head_dim}
        self._norm_q, self._norm_k = (
            DistributedRMSNorm(weights, device, f"{prefix}.{name}", eps=config.eps, **self._sizes)
            for name in ("norm_q", "norm_k")
        )
        self._out = RowParallelLinear(
            weights,
            device,
            f"{prefix}.to_out.0",
            in_features=config.features,
            out_features=config.features,
            in_padded=padded_heads(config.num_attention_heads, device.groups["tp"].size) * config.attention_head_dim,
        )

    def _project_out(self, like: MeshTensor, x_BHNE: Tensor) -> MeshTensor:
        cut = {"tp": Shard(2) if self._device.groups["tp"].size > 1 else Replicate()}
        return self._out(like.with_local(x_BHNE.transpose(1, 2).flatten(2), **cut))


class SelfAttention(_Attention):
    """``attn1``: every video token over all video tokens."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: WanConfig) -> None:
        super().__init__(weights, device, prefix, config)
        names = tuple(f"{prefix}.{n}" for n in ("to_q", "to_k", "to_v"))
        self._qkv = ColParallelQKV(weights, device, names, in_features=config.features, **self._sizes)

    def __call__(self, spatial: MeshTensor, rotary: tuple[Tensor, Tensor], tokens: TokenShards) -> MeshTensor:
        """(B, local N, D), tp=Replicate -> (B, local N, local D), tp=Shard(-1)."""
        q, k, v = self._qkv(spatial)
        q, k = (
            apply_rotary(self._device, self._norm_q(q), *rotary),
            apply_rotary(self._device, self._norm_k(k), *rotary),
        )
        no_prompt = tuple(x[:, :, :0] for x in (q, k, v))
        out, _, _ = joint_attention(self._device, (q, k, v), no_prompt, tokens=tokens)
        return self._project_out(spatial, out)


class CrossAttention(_Attention):
    """``attn2``: every video token over the prompt, which each device holds whole."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: WanConfig) -> None:
        super().__init__(weights, device, prefix, config)
        sizes = {"in_features": config.features, **self._sizes}
        self._q = ColParallelQKV(weights, device, (f"{prefix}.to_q",), **sizes)
        self._kv = ColParallelQKV(weights, device, (f"{prefix}.to_k", f"{prefix}.to_v"), **sizes)

    def __call__(self, spatial: MeshTensor, prompt: MeshTensor) -> MeshTensor:
        """(B, local N, D) and (B, L, D), tp=Replicate -> (B, local N, local D), tp=Shard(-1)."""
        (q,), (k, v) = self._q(spatial), self._kv(prompt)
        q, k = self._norm_q(q), self._norm_k(k)
        state = OnlineSoftmax(self._device, q)
        state.attend_in_blocks(k, v, buffer="prompt")
        return self._project_out(spatial, state.result()[0])
