"""shift: every member hands its tensor to the next one, all at once.

0 --> 1 --> 2 --> 3 -.
^____________________|
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.mesh import Topology
from refsim.ccl.exchange import CHUNK_BYTES, exchange
from refsim.runtime.device import Device
from refsim.runtime.group import Group


def shift(device: Device, x: Tensor, group: Group, *, by: int = 1, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """Return what member ``i - by`` passed; ``by`` is 1 or -1. Bytes sent per member: ``B``.

    Raises:
        UserError: the group is a Line of more than two, which has no link from the last member to the first.
    """
    n = group.size
    i = group.index
    if n == 1:
        return x
    if group.topology is not Topology.RING and n > 2:
        raise UserError(
            f"shift over {group.name} needs the wrap-around link that a Line of {n} lacks; use a Ring axis."
        )
    arrived = torch.empty_like(x, memory_format=torch.contiguous_format)
    with device.collective("shift", group, x, by=by), device.buffers.transient("shift.arrived", arrived):
        exchange(
            device,
            group,
            0,
            sends=[(x.contiguous(), (i + by) % n)],
            recvs=[(arrived, (i - by) % n)],
            chunk_bytes=chunk_bytes,
        )
        with device.reading("hand-over", arrived, step=0):
            return arrived
