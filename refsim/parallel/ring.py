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

from torch import Tensor

from refsim.parallel.kv_ring import KeyRanges, KVGathered, KVRing, KVShards
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.runtime.device import Device
from refsim.runtime.group import Group


def ring_attention(
    device: Device,
    q_BHNE: Tensor,
    k_BHNE: Tensor,
    v_BHNE: Tensor,
    *,
    group: Group,
    valid: KeyRanges,
    rear: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of the local queries over the keys of all members, then over ``rear``.

    Args:
        q_BHNE: local queries, any number of rows (spatial rows, prompt rows behind them).
        k_BHNE, v_BHNE: this member's shard; the same shape on every member.
        valid: row ranges of a member's shard that are keys, by shard index.
        rear: (k_BHLE, v_BHLE) that every member holds (the replicated prompt), attended on the last step.

    Returns:
        (out_BHNE in q's dtype, lse_BHN in fp32, natural logarithm, scale included).
    """
    state = OnlineSoftmax(device, q_BHNE)
    with device.collective("ring_attention", group, *((k_BHNE, v_BHNE) if group.size > 1 else ())):
        with shards(device, group, k_BHNE, v_BHNE, valid) as kv:
            for step in kv.steps():
                kv.prefetch(step + 1)
                for shard, block in kv.blocks(step):
                    # any order of shards will do: a merge weighs by log-sum-exp, whatever has been attended before
                    state.attend(*kv.view(shard, block), step=step)
        if rear is not None:
            state.attend_in_blocks(*rear, step=step, buffer="joint")
    return state.result()


def shards(device: Device, group: Group, k_BHNE: Tensor, v_BHNE: Tensor, valid: KeyRanges) -> KVShards:
    """Where the keys and values come from, as ``ring_order`` says."""
    gathered = device.options.ring_order == "gather" and group.size > 1
    return (KVGathered if gathered else KVRing)(device, group, k_BHNE, v_BHNE, valid)
