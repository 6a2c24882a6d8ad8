"""all_reduce = reduce_scatter + all_gather, over the flattened tensor padded with zeros to n equal slices.

    x (any shape) -> [s0 s1 s2 s3 | 0] --reduce_scatter--> member j holds sum of sj --all_gather--> all hold all

Accumulation order and rounding are those of reduce_scatter; every member ends with the same bits.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.ccl.all_gather import all_gather
from refsim.ccl.exchange import CHUNK_BYTES
from refsim.ccl.reduce_scatter import reduce_scatter
from refsim.runtime.device import Device
from refsim.runtime.group import Group


def all_reduce(device: Device, x: Tensor, group: Group, *, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """Sum ``x`` over the members; all get the sum.

    Bytes sent by member i, with B padded up to a multiple of n elements: ``(n-1)/n * B`` for the reduce_scatter
    plus all_gather's formula with ``B/n``; on a Ring together ``2 (n-1)/n * B``.
    """
    if group.size == 1:
        return x
    with device.collective("all_reduce", group):
        flat = F.pad(x.reshape(-1), (0, -x.numel() % group.size))
        mine = reduce_scatter(device, flat, group, dim=0, chunk_bytes=chunk_bytes)
        full = all_gather(device, mine, group, dim=0, chunk_bytes=chunk_bytes)
    return full[: x.numel()].view(x.shape)
