"""Attention of few key-value heads shared by groups of query heads, heads cut over tp.

    query heads   0 1 2 3 4 5 6 7      8 query heads on 2 key-value heads, tp 4
    kv heads      0 0 0 0 1 1 1 1
    device        0 0 1 1 2 2 3 3      devices 0 and 1 both hold kv head 0

With fewer devices than key-value heads every device has its own; with more they are repeated, never cut.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from refsim.base.errors import UserError
from refsim.parallel.ring import require
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.tensor import MeshTensor, Replicate, Shard

Range = tuple[int, int]


def head_ranges(heads: int, kv_heads: int, tp: Group) -> tuple[Range, Range]:
    """Return this member's query heads and key-value heads, each [start, stop).

    Raises:
        UserError: the heads cannot be cut so that every device has whole groups of one size.
    """
    if heads % tp.size or (kv_heads % tp.size and tp.size % kv_heads):
        fits = [n for n in range(1, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
        raise UserError(
            f"tp{tp.size} cannot split {heads} heads with {kv_heads} key-value heads; tp of "
            f"{', '.join(map(str, fits))} would work."
        )
    mine = heads // tp.size
    start = tp.index * mine
    group = heads // kv_heads
    return (start, start + mine), (start // group, (start + mine - 1) // group + 1)


def grouped_attention(
    device: Device, query_BHNE: MeshTensor, key_BGSE: MeshTensor, value_BGSE: MeshTensor, *, causal: bool
) -> MeshTensor:
    """Attend with the local heads' last N of S rows to all rows, or to the rows up to their own: (B, H, N, E).

    Heads are cut over tp, all three tensors alike (Shard(1), shared key-value heads repeated), or whole in all three.
    """
    heads = Shard(1) if query_BHNE.placement("tp") == Shard(1) else Replicate()
    require("grouped_attention's", (query_BHNE, key_BGSE, value_BGSE), sp=Replicate(), tp=heads)
    q_BHNE = query_BHNE.local
    k_BGSE = key_BGSE.local
    v_BGSE = value_BGSE.local
    rows = q_BHNE.shape[2]
    keys = k_BGSE.shape[2]
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows) if causal else None
    with device.compute("sdpa", q_BHNE, k_BGSE, v_BGSE):
        # torch's CPU kernel needs the features of a head side by side in memory
        out = F.scaled_dot_product_attention(q_BHNE.contiguous(), k_BGSE, v_BGSE, attn_mask=mask, enable_gqa=True)
    return query_BHNE.with_local(out)
