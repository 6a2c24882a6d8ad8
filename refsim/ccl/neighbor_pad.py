"""neighbor_pad: every member's tensor with its neighbours' borders around it; zeros at both ends, whatever the wiring.

0 <-> 1 <-> 2 <-> 3        [0 | x x x | a]   a: the first rows of member 1; zeros where there is no member
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.ccl.exchange import CHUNK_BYTES, exchange
from refsim.runtime.device import Device
from refsim.runtime.group import Group


def neighbor_pad(
    device: Device, x: Tensor, group: Group, *, dim: int, by: int, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """Return ``x`` with ``by`` more rows of ``dim`` on either side, the neighbours' or zeros; ``by`` is at most its
    rows, ``ValueError`` if it is not.

    Bytes sent by member i: ``([i>0] + [i<n-1]) * bytes of "by" rows``. The ends never meet, also on a Ring.

    Source: TTNN's ``neighbor_pad_async`` with padding mode zeros.
    """
    n = group.size
    i = group.index
    size = x.shape[dim]
    if not 1 <= by <= size:
        raise ValueError(f"neighbor_pad cannot give {by} of {size} rows to a neighbour; it gives 1 to all of them")
    first = x.narrow(dim, 0, by).contiguous()
    last = x.narrow(dim, size - by, by).contiguous()
    before = torch.empty_like(first)
    after = torch.empty_like(last)
    sends = [(first, i - 1)] * (i > 0) + [(last, i + 1)] * (i + 1 < n)
    recvs = [(before, i - 1)] * (i > 0) + [(after, i + 1)] * (i + 1 < n)
    arrived = device.buffers.transient("neighbor_pad.arrived", before, after)
    with device.collective("neighbor_pad", group, *(border for border, _ in sends), dim=dim, by=by), arrived:
        for border in [before] * (i == 0) + [after] * (i + 1 == n):
            with device.writing("zeros beyond the end", border):
                border.zero_()
        exchange(device, group, 0, sends=sends, recvs=recvs, chunk_bytes=chunk_bytes)
        with device.reading("concatenation", before, after):
            return torch.cat([before, x, after], dim)
