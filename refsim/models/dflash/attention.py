"""Attention of a block of noise to the context and to itself, no mask, whole on every device.

    context (C rows)  --k, v----------------.
    noise  (16 rows)  --rms norm--> k, v ---+--> cache --> all rows: 0 .. start-1 context, then the 16 of the noise
                                --> q ---------> every query sees every row

Keys are kept after norm and rotation, values as they are. The context is normed once for all layers, by the model; the
input norm of a layer is applied to the noise only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.grouped_attention import grouped_attention
from refsim.layers.kv_cache import KVCache
from refsim.layers.norm import RMSNorm
from refsim.layers.rope import rotate_halves
from refsim.models.dflash.config import DFlashConfig
from refsim.parallel.tensor import concat_heads
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor


class DFlashAttention:
    """``layers.{index}.self_attn``."""

    def __init__(self, weights: Weights, device: Device, prefix: str, config: DFlashConfig) -> None:
        self._device = device
        self._head_dim = config.head_dim
        d = config.hidden_size
        e = config.head_dim
        heads = config.num_attention_heads * e
        kv_heads = config.num_key_value_heads * e
        rows = {"q": heads, "k": kv_heads, "v": kv_heads}
        self._q, self._k, self._v = (weights.take(f"{prefix}.{n}_proj.weight", (rows[n], d)) for n in rows)
        self._o = weights.take(f"{prefix}.o_proj.weight", (d, heads))
        norm = {"features": e, "eps": config.rms_norm_eps}
        self._q_norm, self._k_norm = (RMSNorm(weights, device, f"{prefix}.{n}", **norm) for n in ("q_norm", "k_norm"))

    def __call__(self, noise_BND: Tensor, context_BCD: Tensor, rotary: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        """Map normed noise and context to (B, N, D). ``rotary`` is of the C + N new rows, which join the cache."""
        rows = torch.cat([context_BCD, noise_BND], 1)
        q = self._q_norm(self._heads(noise_BND, self._q))
        k = self._k_norm(self._heads(rows, self._k))
        q = rotate_halves(self._device, q, *(table[-q.shape[2] :] for table in rotary))
        k = rotate_halves(self._device, k, *rotary)
        v = self._heads(rows, self._v)
        keys, values = cache.append(MeshTensor(k), MeshTensor(v))
        out = concat_heads(grouped_attention(self._device, MeshTensor(q), keys, values, causal=False)).local
        with self._device.compute("linear", out, self._o):
            return F.linear(out, self._o)

    def _heads(self, x: Tensor, weight: Tensor) -> Tensor:
        with self._device.compute("linear", x, weight):
            return F.linear(x, weight).unflatten(-1, (-1, self._head_dim)).transpose(1, 2)
