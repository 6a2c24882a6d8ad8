"""Wan's two attentions: of the video over itself around the ring, and of the video over the prompt on each device;
counterpart of ``refsim.models.wan22.attention``.

    self    x --gather, QKV--> q k v --norm over all heads, heads, RoPE in one op--> ring attention, no joint --> out
    cross   x --gather, q--> norm over all heads --.
            prompt --fused KV--> norm(k) --+--> attention of local q over the whole prompt --+--> out
            image  --fused KV--> norm(k) --'    the same over the image, where there is one -'

The norm of all heads of a token needs their sum of squares over tp: an all-gather for q and one for k.
"""

from __future__ import annotations

import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.wan22.config import WanConfig
from tt_impl.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads
from tt_impl.layers.matmul import Residual
from tt_impl.layers.norm import DistributedRMSNorm
from tt_impl.layers.rope import PairTables
from tt_impl.parallel.context import Context
from tt_impl.parallel.sdpa import program_config
from tt_impl.parallel.usp import joint_attention


class _Attention:
    """What both have: norms of queries and keys over all heads, and the row-parallel output."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: WanConfig) -> None:
        self._ctx = ctx
        heads = config.num_attention_heads
        head_dim = config.attention_head_dim
        self._sizes = AttentionSizes(config.features, heads, head_dim)
        self._norm_q, self._norm_k = (
            DistributedRMSNorm(weights, ctx, f"{prefix}.{name}", num_heads=heads, head_dim=head_dim, eps=config.eps)
            for name in ("norm_q", "norm_k")
        )
        self._out = RowParallelHeads(weights, ctx, f"{prefix}.to_out.0", self._sizes)

    def _heads(self, v: ttnn.Tensor) -> ttnn.Tensor:
        """(B, 1, rows, local heads * E) -> (B, local heads, rows, E)."""
        local_heads = v.shape[3] // self._sizes.head_dim
        return ttnn.experimental.nlp_create_qkv_heads(
            v, num_heads=local_heads, num_kv_heads=0, transpose_k_heads=False
        )[0]


class SelfAttention(_Attention):
    """``attn1``: every video token over all video tokens."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: WanConfig) -> None:
        super().__init__(weights, ctx, prefix, config)
        names = tuple(f"{prefix}.{n}" for n in ("to_q", "to_k", "to_v"))
        self._qkv = ColParallelQKV(weights, ctx, names, self._sizes)

    def __call__(
        self, spatial: ttnn.Tensor, rotary: PairTables, logical_n: int, onto: Residual | None = None
    ) -> ttnn.Tensor:
        """Map (B, 1, local N, local D), gathered on the way, to the same; ``onto``: gated, added to a stream."""
        q, k, v = self._qkv.columns_of_shards(spatial)
        qkv = self._norm_q(q, rotary), self._norm_k(k, rotary), self._heads(v)
        out, _ = joint_attention(self._ctx, qkv, None, logical_n=logical_n)
        return self._out(out, onto)


class CrossAttention(_Attention):
    """``attn2``: every video token over the prompt, which each device holds whole, its padding rows being keys too, and
    over an image by itself.
    """

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: WanConfig) -> None:
        super().__init__(weights, ctx, prefix, config)
        self._q = ColParallelQKV(weights, ctx, (f"{prefix}.to_q",), self._sizes)
        self._kv = ColParallelQKV(weights, ctx, (f"{prefix}.to_k", f"{prefix}.to_v"), self._sizes)
        self._image_kv = None
        if config.image_dim is not None:
            heads = config.num_attention_heads
            head_dim = config.attention_head_dim
            names = (f"{prefix}.add_k_proj", f"{prefix}.add_v_proj")
            self._image_kv = ColParallelQKV(weights, ctx, names, self._sizes)
            self._norm_image_k = DistributedRMSNorm(
                weights, ctx, f"{prefix}.norm_added_k", num_heads=heads, head_dim=head_dim, eps=config.eps
            )
            weights.leave(f"{prefix}.norm_added_q.")  # published checkpoints hold it, and nothing uses it

    def __call__(self, spatial: ttnn.Tensor, prompt: ttnn.Tensor, image: ttnn.Tensor | None = None) -> ttnn.Tensor:
        """Map (B, 1, local N, local D), gathered on the way, (B, 1, L, D) and (B, 1, M, D) gathered to (B, 1, local N,
        local D).
        """
        (q,) = self._q.columns_of_shards(spatial)
        k, v = self._kv.columns(prompt)
        q = self._norm_q(q)
        out = self._attend(q, self._norm_k(k), self._heads(v))
        if self._image_kv is not None and image is not None:
            k, v = self._image_kv.columns(image)
            out = ttnn.add(out, self._attend(q, self._norm_image_k(k), self._heads(v)))
        return self._out(out)

    def _attend(self, q: ttnn.Tensor, k: ttnn.Tensor, v: ttnn.Tensor) -> ttnn.Tensor:
        """Each (B, local heads, rows, E)."""
        return ttnn.transformer.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=False,
            program_config=program_config(self._ctx, q.shape[2], reserve_row=False, keys=k.shape[2]),
            compute_kernel_config=self._ctx.sdpa_config,
        )
