"""all_gather: every member ends with the shards of all, in shard order.

Ring, step s        0 --> 1 --> 2 --> 3 -.      member i sends shard i-s to i+1,
                    ^____________________|      receives shard i-1-s from i-1 (indices mod n)

Line, step s        0 <-> 1 <-> 2 <-> 3         to the right shard i-s, to the left shard i+s,
                                                as far as they exist
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from refsim.base.mesh import Topology
from refsim.ccl.exchange import CHUNK_BYTES, exchange
from refsim.runtime.device import Device
from refsim.runtime.group import Group


def all_gather(
    device: Device, x: Tensor, group: Group, *, dim: int, out: Tensor | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """Concatenate every member's ``x`` along ``dim``; all members pass equal shapes.

    Bytes sent by member i, in n-1 steps: Ring ``(n-1) * B``; Line ``((i+1)*[i<n-1] + (n-i)*[i>0]) * B``.

    Args:
        out: persistent (n, *x.shape) device buffer to gather into; it is handed back as it is, unread.

    Returns:
        x.shape with ``dim`` n times as long, or ``out``. Same as ``torch.distributed.all_gather`` followed by ``cat``.
    """
    n = group.size
    i = group.index
    if n == 1:
        return x
    stage = torch.empty((n, *x.shape), dtype=x.dtype) if out is None else out
    staging = device.buffers.transient("all_gather.stage", stage) if device.buffers.of(stage) is None else nullcontext()
    with device.collective("all_gather", group, x, dim=dim), staging:
        with device.writing("copy of the local shard", stage[i]):
            stage[i].copy_(x)
        for s in range(n - 1):
            if group.topology is Topology.RING:
                sends = [(stage[(i - s) % n], (i + 1) % n)]
                recvs = [(stage[(i - 1 - s) % n], (i - 1) % n)]
            else:
                sends = [(stage[i - s], i + 1)] if i + 1 < n and i - s >= 0 else []
                sends += [(stage[i + s], i - 1)] if i > 0 and i + s < n else []
                recvs = [(stage[i - 1 - s], i - 1)] if i - 1 - s >= 0 else []
                recvs += [(stage[i + 1 + s], i + 1)] if i + 1 + s < n else []
            exchange(device, group, s, sends=sends, recvs=recvs, chunk_bytes=chunk_bytes)
        if out is not None:
            return out
        with device.reading("concatenation", stage):
            return torch.cat(stage.unbind(0), dim)
