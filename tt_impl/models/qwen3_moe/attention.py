"""Causal attention of a decoder layer, heads cut over tp; counterpart of ``refsim.models.qwen3_moe.attention``.

x, whole --> q, k, v of the local heads --rms norm per head, rotate--> cache --> SDPA --> o_proj, row-parallel
"""

from __future__ import annotations

import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from tt_impl.layers.grouped_attention import GroupedQKV
from tt_impl.layers.kv_cache import KVCache
from tt_impl.layers.linear import RowParallelLinear
from tt_impl.layers.norm import RMSNorm
from tt_impl.layers.paged_cache import PagedKVCache
from tt_impl.layers.rope import Tables, rotate_halves
from tt_impl.parallel.context import Context


class Qwen3MoeAttention:
    """``model.layers.{index}.self_attn``; (1, 1, N, D), whole in, cut over tp out."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: Qwen3MoeConfig) -> None:
        self._ctx = ctx
        d = config.hidden_size
        e = config.head_dim
        heads = config.num_attention_heads
        sizes = {"features": d, "heads": heads, "kv_heads": config.num_key_value_heads, "head_dim": e}
        self._qkv = GroupedQKV(weights, ctx, prefix, **sizes, tp=ctx.tp)
        norm = {"features": e, "eps": config.rms_norm_eps}
        self._q_norm, self._k_norm = (RMSNorm(weights, ctx, f"{prefix}.{n}", **norm) for n in ("q_norm", "k_norm"))
        self._out = RowParallelLinear(
            weights, ctx, f"{prefix}.o_proj", in_features=heads * e, out_features=d, in_padded=heads * e, bias=False
        )

    def __call__(
        self, x: ttnn.Tensor, rotary: Tables, cache: KVCache | PagedKVCache, *, mask: ttnn.Tensor | None
    ) -> ttnn.Tensor:
        q, k, v = self._qkv(x)
        q = rotate_halves(self._q_norm(q), *rotary)
        k = rotate_halves(self._k_norm(k), *rotary)
        return self._out(cache.attend(self._ctx, q, k, v, mask=mask))
