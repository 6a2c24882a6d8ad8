"""Causal attention of a decoder layer, heads cut over tp, keys and values of earlier rows from a cache.

x, replicated --> q of the local heads --rms norm per head--rotate--.
              --> k of their kv heads  --rms norm per head--rotate--+-> cache --> attention --> o_proj, row-parallel
              --> v of their kv heads  -----------------------------'                           reduce_scatter
"""

from __future__ import annotations

from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.grouped_attention import grouped_attention, head_ranges
from refsim.layers.kv_cache import KVCache
from refsim.layers.linear import AttentionSizes, RowParallelHeads
from refsim.layers.norm import RMSNorm
from refsim.layers.rope import rotate_halves
from refsim.models.qwen3_moe.config import Qwen3MoeConfig
from refsim.parallel.padding import padded_features
from refsim.parallel.tensor import fused_column_linear, split_heads
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor


class Qwen3MoeAttention:
    """``model.layers.{index}.self_attn``. Input (B, N, D) tp=Replicate, output tp=Shard(-1)."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: Qwen3MoeConfig) -> None:
        self._device = device
        self._head_dim = config.head_dim
        tp = device.groups["tp"]
        d = config.hidden_size
        e = config.head_dim
        heads, kv_heads = head_ranges(config.num_attention_heads, config.num_key_value_heads, tp)
        self._heads = heads[1] - heads[0]
        self._kv_heads = kv_heads[1] - kv_heads[0]
        columns = (0, padded_features(d, tp.size))

        def projection(name: str, total: int, mine: tuple[int, int]) -> Tensor:
            return weights.take(f"{prefix}.{name}.weight", (total * e, d), (mine[0] * e, mine[1] * e), columns)

        self._qkv = [
            projection("q_proj", config.num_attention_heads, heads),
            projection("k_proj", config.num_key_value_heads, kv_heads),
            projection("v_proj", config.num_key_value_heads, kv_heads),
        ]
        norm = {"features": e, "eps": config.rms_norm_eps}
        self._q_norm, self._k_norm = (RMSNorm(weights, device, f"{prefix}.{n}", **norm) for n in ("q_norm", "k_norm"))
        sizes = AttentionSizes(d, config.num_attention_heads, e)
        self._out = RowParallelHeads(weights, device, f"{prefix}.o_proj", sizes, bias=False)

    def __call__(self, x: MeshTensor, rotary: tuple[Tensor, Tensor], cache: KVCache) -> MeshTensor:
        heads = split_heads(fused_column_linear(self._device, x, self._qkv, [None, None, None]), self._head_dim)
        mine = heads.local.split([self._heads, self._kv_heads, self._kv_heads], 1)
        q, k, v = (heads.with_local(part) for part in mine)
        q = q.map("rms_norm", self._q_norm).map("rope", lambda y: rotate_halves(self._device, y, *rotary))
        k = k.map("rms_norm", self._k_norm).map("rope", lambda y: rotate_halves(self._device, y, *rotary))
        return self._out(grouped_attention(self._device, q, *cache.append(k, v), causal=True))
