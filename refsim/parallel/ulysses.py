"""Ulysses: all-to-all turns a sequence shard of all heads into all tokens of a head shard, and back.

    q, k, v   member u: rows of u, heads 0..h     --all_to_all-->  member u: rows of all, heads of u
                                                  attention over the heads of u (here: ``inner``)
    out       member u: rows of all, heads of u   --all_to_all-->  member u: rows of u, heads 0..h

The replicated prompt is not exchanged: every member takes the heads of u from its copy, and the prompt's output is
gathered over heads. (Exchanging a replicated prompt would multiply it by n.)

Heads that do not divide by n are padded with zeros for the exchange and dropped after it, or refused.

Bytes sent per member, B = bytes of its q (heads padded), n members: ``4 (n-1)/n * B`` for q, k, v and out; with a
replicated prompt of output bytes P (heads padded), all_gather's formula with ``P/n``.

Source: DeepSpeed-Ulysses (arXiv 2309.14509).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.ccl import all_gather, all_to_all
from refsim.errors import UserError
from refsim.parallel.kv_ring import KeyRanges
from refsim.parallel.padding import padded_heads
from refsim.runtime.device import Device
from refsim.runtime.group import Group

Joint = tuple[Tensor, Tensor, Tensor]
"""Replicated prompt (q_BHLE, k_BHLE, v_BHLE); q may have no rows where the prompt asks nothing."""

Inner = Callable[[Tensor, Tensor, Tensor, "Joint | None", KeyRanges], tuple[Tensor, Tensor]]
"""Attention of (q, k, v, joint, valid) -> (out, lse) with the rows of joint q behind those of q."""


def ulysses_attention(
    device: Device,
    q_BHNE: Tensor,
    k_BHNE: Tensor,
    v_BHNE: Tensor,
    joint: Joint | None,
    *,
    group: Group,
    valid: KeyRanges,
    inner: Inner,
    pad_heads: bool,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the heads spread over ``group`` while ``inner`` runs.

    Returns:
        (out_BHNE with joint rows behind, lse_BHN in fp32 or None), rows and heads as they came in. Moving the
        log-sum-exp costs another 1/E of out's bytes (in fp32), so it is left where it is unless asked for.

    Raises:
        UserError: the heads do not divide by the group size and ``pad_heads`` is off.
    """
    u, heads, rows = group.size, q_BHNE.shape[1], q_BHNE.shape[2]
    if u == 1:
        return inner(q_BHNE, k_BHNE, v_BHNE, joint, valid)
    extra = padded_heads(heads, u) - heads
    if extra and not pad_heads:
        raise UserError(cannot_split_heads(heads, u))

    def pad(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, 0, 0, extra)) if extra else x

    def mine(x: Tensor) -> Tensor:
        return pad(x).chunk(u, 1)[group.index].contiguous()

    with device.collective("ulysses", group):
        whole = {"q": q_BHNE, "k": k_BHNE, "v": v_BHNE}
        for name in device.delays.agreed(whole, group):
            whole[name] = all_to_all(device, pad(whole[name]), group, split_dim=1, concat_dim=2)
        q, k, v = whole.values()
        local_joint = tuple(mine(x) for x in joint) if joint is not None else None

        def merged_valid(shard: int) -> list[tuple[int, int]]:
            """Rows of the u sub-shards that now lie behind each other."""
            return [(j * rows + a, j * rows + b) for j in range(u) for a, b in valid(shard * u + j)]

        out, lse = inner(q, k, v, local_joint, merged_valid)
        out = _back(device, out, group, q.shape[2])[:, :heads]
        if not with_lse:
            return out, None
        return out, _back(device, lse.unsqueeze(-1), group, q.shape[2])[:, :heads, :, 0]


def _back(device: Device, out: Tensor, group: Group, n: int) -> Tensor:
    """The first ``n`` rows to their members, the prompt rows behind them to everybody; all heads."""
    spatial = all_to_all(device, out[:, :, :n], group, split_dim=2, concat_dim=1)
    if out.shape[2] == n:
        return spatial
    prompt = all_gather(device, out[:, :, n:].contiguous(), group, dim=1)
    return torch.cat([spatial, prompt], 2)


def cannot_split_heads(heads: int, factor: int) -> str:
    """The sentence for heads that do not divide."""
    works = ", ".join(str(d) for d in range(1, heads + 1) if heads % d == 0)
    return (
        f"ulysses {factor} cannot split {heads} heads evenly; use a factor that divides them ({works}) "
        f"or let them be padded to {padded_heads(heads, factor)} (--pad-heads)."
    )
