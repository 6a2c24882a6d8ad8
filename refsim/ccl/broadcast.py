"""broadcast: every member ends with the root's tensor.

    Ring      .-- 3 <- 4 <- 0 -> 1 -> 2 --.     two arms leave the root, the longer one to the right
    Line            0 <- 1 <- [2] -> 3          one arm to each end

Members store and forward chunk by chunk: chunk c moves on while chunk c+1 arrives.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from refsim.base.mesh import Topology
from refsim.ccl.exchange import CHUNK_BYTES, split_chunks
from refsim.runtime.device import Device
from refsim.runtime.group import Group


def broadcast(device: Device, x: Tensor, group: Group, *, root: int, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """Give every member the root's ``x``; of the ``x`` that the other members pass, only shape and dtype are used.

    Bytes sent: the root ``B`` per arm, every member in the middle of an arm ``B``, a member at its end nothing;
    over the whole group ``(n-1) * B``.
    """
    n = group.size
    i = group.index
    if n == 1:
        return x
    ring = group.topology is Topology.RING
    right = (i - root) % n if ring else i - root
    reach_right = n // 2 if ring else n - 1 - root
    reach_left = n - 1 - reach_right
    value = x.contiguous() if i == root else torch.empty_like(x, memory_format=torch.contiguous_format)
    if i == root:
        source = root
        to = [(i + 1) % n] * (reach_right > 0) + [(i - 1) % n] * (reach_left > 0)
    elif 0 < right <= reach_right:
        source = (i - 1) % n
        to = [(i + 1) % n] * (right < reach_right)
    else:
        left = n - right if ring else -right
        source = (i + 1) % n
        to = [(i - 1) % n] * (left < reach_left)
    arrived = device.buffers.transient("broadcast.value", value) if i != root else nullcontext()
    with device.collective("broadcast", group, x, root=root), arrived:
        chunks = split_chunks(value, chunk_bytes)
        arrivals = [device.irecv(c, group, source, step=k) for k, c in enumerate(chunks)] if i != root else []
        sends = []
        for k, chunk in enumerate(chunks):
            if arrivals:
                arrivals[k].wait()
            sends += device.delays.interleave([partial(device.isend, chunk, group, j, step=k)] for j in to)
        for send in device.delays.shuffle(sends):
            send.wait()
        if i != root:
            with device.reading("hand-over", value):
                pass
    return value
