"""Ring joint attention: queries stay, keys and values travel, two persistent buffers each.

    Ring, member i              step 0        step 1        step 2        step 3
      computes on shard         i             i-1           i-2           i-3, then the prompt (rear)
      K, V live in buffer       [0]           [1]           [0]           [1]
      meanwhile receives into   [1]           [0]           [1]           -
      meanwhile sends           [0] to i+1    [1] to i+1    [0] to i+1    -

    Line, member i: shards travel both ways. At step s it has shard i-s from the left and i+s from the right, as far
    as they exist, and passes both on; each direction has its own pair of buffers. Step 0 is the local shard.

One step is: post the receive of the next shard, wait for this step's, send it on, compute. The order of visits differs
from member to member; the log-sum-exp merge makes the answer the same up to fp32 rounding (and the same bits from
run to run). Keys beyond ``logical_n`` are never seen: a block is cut at the border, a block beyond it is skipped.

Bytes sent by member i, B = bytes of its K and V together (n-1 steps):
    Ring  (n-1) * B              Line  ((i+1)*[i<n-1] + (n-i)*[i>0]) * B

``device.options.ring_order`` (same result to the bit, other traces):
    gather  all shards first, into one persistent gathered buffer per tensor, then compute
    step    the transfer of step s+1 is under way while step s is computed
    block   the same per k block: a block is passed on and consumed as soon as it has arrived

Source: tt-metal's ring_joint_scaled_dot_product_attention; Ring Attention (arXiv 2310.01889).
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.parallel.kv_ring import KeyRanges, KVGathered, KVRing, KVShards
from refsim.parallel.padding import TILE, round_up
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.parallel.sequence import Keys
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor, Placement, Replicate, shards

QKV = tuple[MeshTensor, MeshTensor, MeshTensor]


Answers = tuple[MeshTensor, "MeshTensor | None"]
"""What two streams of queries got: those of the shards, and those of ``rear`` if there is one."""


def ring_attention(
    device: Device,
    qkv: QKV,
    rear: QKV | None = None,
    *,
    valid: KeyRanges,
    rear_mask: Tensor | None = None,
    asked: KeyRanges | None = None,
) -> tuple[Answers, Answers]:
    """Attend with the local queries, and those of ``rear``, to the keys of all members, then to those of ``rear``.

    Args:
        qkv: this member's shard, each (B, H, N, E): ring=Shard(2), heads cut over tp and ulysses (Shard(1)); k and v
            have the same shape on every member.
        rear: what every member holds, each (B, H, L, E): ring=Replicate, heads cut the same way (the replicated
            prompt). Its keys are attended on the last step; its q may have no rows.
        valid: rows of a member's shard that are keys, by shard index.
        rear_mask: bool (B, L), which rows of ``rear`` are keys of which sample; None for all.
        asked: rows of a member's shard whose queries want an answer; behind the tile of the last one, others get zeros
            where there is no ``rear``. None for all.

    Returns:
        (outs, lses): outs as the queries were, lses (B, H, rows, 1) in fp32 (natural logarithm, scale included).

    Raises:
        PlacementError: a tensor is laid out differently.
    """
    require("ring_attention's", qkv, **shards(device.groups, tp=1, ulysses=1, ring=2))
    q, k, v = (x.local for x in qkv)
    if rear is not None:
        require("ring_attention's rear", rear, **shards(device.groups, tp=1, ulysses=1), ring=Replicate())
        q = torch.cat([q, rear[0].local], 2)
    group = device.groups["ring"]
    by_sample = rear_mask is not None or isinstance(valid(group.index), Tensor)
    answered = None if asked is None or rear is not None else _whole_tiles(asked(group.index), q.shape[2])
    state = OnlineSoftmax(device, q, by_sample=by_sample, answered=answered)
    with device.collective("ring_attention", group, *((k, v) if group.size > 1 else ())):
        with kv_source(device, k, v, valid) as kv:
            for step in kv.steps():
                kv.prefetch(step + 1)
                for shard, block in kv.blocks(step):
                    # any order of shards will do: a merge weighs by log-sum-exp, whatever has been attended before
                    state.attend(*kv.view(shard, block), step=step)
        if rear is not None:
            state.attend_in_blocks(rear[1].local, rear[2].local, rear_mask, step=step, buffer="joint")
    out, lse = state.result()
    return _apart(out, qkv, rear), _apart(lse.unsqueeze(-1), qkv, rear)


def kv_source(device: Device, k_BHNE: Tensor, v_BHNE: Tensor, valid: KeyRanges) -> KVShards:
    """Return where the keys and values of the ring's members come from, as ``ring_order`` says."""
    group = device.groups["ring"]
    gathered = device.options.ring_order == "gather" and group.size > 1
    return (KVGathered if gathered else KVRing)(device, group, k_BHNE, v_BHNE, valid)


def _whole_tiles(asked: Keys, rows: int) -> int:
    """Return how many of ``rows`` reach to the end of the last tile with a row in ``asked``."""
    last = max((stop for start, stop in asked if start < stop), default=0)
    return min(round_up(last, TILE), rows)


def require(op: str, qkv: QKV, **wanted: Placement) -> None:
    """Raise ``PlacementError`` with the tensor's name unless q, k and v are laid out as ``op`` needs them."""
    for name, x in zip("qkv", qkv, strict=True):
        x.require(f"{op} {name}", **wanted)


def _apart(rows: Tensor, qkv: QKV, rear: QKV | None) -> Answers:
    """Give the rows of an answer, each to the stream whose queries they answer."""
    n = qkv[0].shape[2]
    return qkv[0].with_local(rows[:, :, :n]), None if rear is None else rear[0].with_local(rows[:, :, n:])
