"""Attention of a block of noise to the context and to itself, no mask, whole on every device.

    context (new rows) --k, v--> norm, rotate k --> cache, context only --.
    noise   (16 rows)  --k, v--> norm, rotate k -------------------------+--concat--> SDPA, not causal --> o_proj
                       --q-----> norm, rotate ---------------------------'

The noise never enters the cache. Counterpart of ``refsim.models.dflash.attention``, which crops it afterwards.

Legend: B batch, 1; N rows of noise, C new rows of context; D features. A (B, N, D) is (1, 1, N, D) on the devices.
"""

from __future__ import annotations

import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.dflash.config import DFlashConfig
from tt_impl.layers.grouped_attention import GroupedQKV, grouped_attention
from tt_impl.layers.kv_cache import KVCache
from tt_impl.layers.linear import Linear
from tt_impl.layers.norm import RMSNorm
from tt_impl.layers.rope import Tables, rotate_halves
from tt_impl.parallel.context import Context


class DFlashAttention:
    """``layers.{index}.self_attn``."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: DFlashConfig) -> None:
        self._ctx = ctx
        d = config.hidden_size
        e = config.head_dim
        heads = config.num_attention_heads
        sizes = {"features": d, "heads": heads, "kv_heads": config.num_key_value_heads, "head_dim": e}
        self._qkv = GroupedQKV(weights, ctx, prefix, **sizes, tp=1)
        norm = {"features": e, "eps": config.rms_norm_eps}
        self._q_norm, self._k_norm = (RMSNorm(weights, ctx, f"{prefix}.{n}", **norm) for n in ("q_norm", "k_norm"))
        self._out = Linear(weights, ctx, f"{prefix}.o_proj", in_features=heads * e, out_features=d, bias=False)

    def __call__(
        self, noise_BND: ttnn.Tensor, context_BCD: ttnn.Tensor, rotary: tuple[Tables, Tables], cache: KVCache
    ) -> ttnn.Tensor:
        """Normed noise (1, 1, N, D) and context (1, 1, C, D); ``rotary`` is of the noise and of the context."""
        q, k, v = self._qkv(noise_BND)
        of_noise, of_context = rotary
        q = rotate_halves(self._q_norm(q), *of_noise)
        k = rotate_halves(self._k_norm(k), *of_noise)
        k_context, v_context = self._qkv.keys_values(context_BCD)
        rows = cache.append(rotate_halves(self._k_norm(k_context), *of_context), v_context)
        k, v = (
            ttnn.concat([old, ttnn.typecast(new, ttnn.bfloat16)], dim=2) for old, new in zip(rows, (k, v), strict=True)
        )
        return self._out(grouped_attention(self._ctx, q, k, v, mask=None))
