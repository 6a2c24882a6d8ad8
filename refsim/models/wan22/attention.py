"""Wan's two attentions: of the video over itself around the ring, and of the video over the prompt on each device.

    self    x --fused QKV--> q k v --norm over all heads--> RoPE --> ring joint attention, dummy joint --> out
    cross   x --q--> norm over all heads --.
            prompt --fused KV--> norm(k) --+--> attention of local q over the replicated prompt --+--> out
            image  --fused KV--> norm(k) --'    the same over the image, where there is one ------'

Heads are cut over tp, tokens over sp. Cross-attention needs no communication over sp. The prompt has no mask: its
padding rows (512 in all) are keys like the others.
"""

from __future__ import annotations

from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads
from refsim.layers.norm import DistributedRMSNorm
from refsim.layers.rope import apply_rotary
from refsim.models.wan22.config import WanConfig
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.parallel.sequence import TokenShards
from refsim.parallel.usp import joint_attention
from refsim.runtime.device import Device, in_module
from refsim.runtime.tensor import MeshTensor, Replicate


class _Attention:
    """What both have: norms of queries and keys over all heads, and the row-parallel output."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: WanConfig) -> None:
        self._device = device
        self._name = prefix
        heads = config.num_attention_heads
        head_dim = config.attention_head_dim
        self._sizes = AttentionSizes(config.features, heads, head_dim)
        self._norm_q, self._norm_k = (
            DistributedRMSNorm(weights, device, f"{prefix}.{name}", num_heads=heads, head_dim=head_dim, eps=config.eps)
            for name in ("norm_q", "norm_k")
        )
        self._out = RowParallelHeads(weights, device, f"{prefix}.to_out.0", self._sizes)


class SelfAttention(_Attention):
    """``attn1``: every video token over all video tokens."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: WanConfig) -> None:
        super().__init__(weights, device, prefix, config)
        names = tuple(f"{prefix}.{n}" for n in ("to_q", "to_k", "to_v"))
        self._qkv = ColParallelQKV(weights, device, names, self._sizes)

    @in_module
    def __call__(self, spatial: MeshTensor, rotary: tuple[Tensor, Tensor], tokens: TokenShards) -> MeshTensor:
        """Map (B, local N, D), tp=Replicate to (B, local N, local D), tp=Shard(-1)."""
        q, k, v = self._qkv(spatial)
        q = self._norm_q(q)
        k = self._norm_k(k)
        q, k = (x.map("rope", lambda y: apply_rotary(self._device, y, *rotary)) for x in (q, k))
        qkv = q, k, v
        no_prompt = tuple(x.with_local(x.local[:, :, :0], sp=Replicate()) for x in qkv)
        out, _, _ = joint_attention(self._device, qkv, no_prompt, tokens=tokens)
        return self._out(out)


class CrossAttention(_Attention):
    """``attn2``: every video token over the prompt, which each device holds whole, and over an image by itself."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: WanConfig) -> None:
        super().__init__(weights, device, prefix, config)
        self._q = ColParallelQKV(weights, device, (f"{prefix}.to_q",), self._sizes)
        self._kv = ColParallelQKV(weights, device, (f"{prefix}.to_k", f"{prefix}.to_v"), self._sizes)
        self._image_kv = None
        if config.image_dim is not None:
            heads = config.num_attention_heads
            head_dim = config.attention_head_dim
            names = (f"{prefix}.add_k_proj", f"{prefix}.add_v_proj")
            self._image_kv = ColParallelQKV(weights, device, names, self._sizes)
            self._norm_image_k = DistributedRMSNorm(
                weights, device, f"{prefix}.norm_added_k", num_heads=heads, head_dim=head_dim, eps=config.eps
            )
            weights.leave(f"{prefix}.norm_added_q.")  # published checkpoints hold it, and nothing uses it

    @in_module
    def __call__(self, spatial: MeshTensor, prompt: MeshTensor, image: MeshTensor | None = None) -> MeshTensor:
        """Map (B, local N, D), (B, L, D) and (B, M, D), tp=Replicate to (B, local N, local D), tp=Shard(-1)."""
        for name, x in (("prompt", prompt), ("image", image)):
            if x is not None:
                x.require(f"cross-attention's {name}", sp=Replicate())
        (q,) = self._q(spatial)
        k, v = self._kv(prompt)
        q = self._norm_q(q)
        out = self._attend(q, self._norm_k(k), v, buffer="prompt")
        if self._image_kv is not None and image is not None:
            k, v = self._image_kv(image)
            out = out + self._attend(q, self._norm_image_k(k), v, buffer="image")
        return self._out(out)

    def _attend(self, q: MeshTensor, k: MeshTensor, v: MeshTensor, *, buffer: str) -> MeshTensor:
        state = OnlineSoftmax(self._device, q.local)
        state.attend_in_blocks(k.local, v.local, buffer=buffer)
        return q.with_local(state.result()[0])
