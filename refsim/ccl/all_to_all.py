"""all_to_all: member i's piece j becomes member j's piece i.

    member 0: [00 01 02 03]          [00 10 20 30]
    member 1: [10 11 12 13]   --->   [01 11 21 31]
    member 2: [20 21 22 23]          [02 12 22 32]
    member 3: [30 31 32 33]          [03 13 23 33]

Pairwise, as the fabric unicasts it: at step d a member on a Ring sends to i+d and receives from i-d (mod n); on a
Line it exchanges with i+d and i-d as far as they exist. Devices in between only route, their memory is not touched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.mesh import Topology
from refsim.ccl.exchange import CHUNK_BYTES, exchange
from refsim.runtime.device import Device
from refsim.runtime.group import Group


def all_to_all(
    device: Device, x: Tensor, group: Group, *, split_dim: int, concat_dim: int, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """Cut ``x`` along ``split_dim`` into one piece per member and join what arrives along ``concat_dim``.

    Bytes sent per member, Ring and Line alike: ``(n-1)/n * B``.

    Raises:
        UserError: ``split_dim`` does not divide by the group size.
    """
    n = group.size
    i = group.index
    if n == 1:
        return x
    if x.shape[split_dim] % n:
        raise UserError(
            f"all_to_all cannot cut dim {split_dim} of size {x.shape[split_dim]} into {n} equal pieces; "
            f"pad it to {-(-x.shape[split_dim] // n) * n}."
        )
    pieces = [p.contiguous() for p in x.chunk(n, split_dim)]
    arrived = [torch.empty_like(p) for p in pieces]
    arrived[i] = pieces[i]
    foreign = [arrived[j] for j in range(n) if j != i]
    call = device.collective("all_to_all", group, x, split_dim=split_dim, concat_dim=concat_dim)
    with call, device.buffers.transient("all_to_all.arrived", *foreign):
        for d in range(1, n):
            if group.topology is Topology.RING:
                to = [(i + d) % n]
                source = [(i - d) % n]
            else:
                to = [j for j in (i + d, i - d) if 0 <= j < n]
                source = to
            exchange(
                device,
                group,
                d,
                sends=[(pieces[j], j) for j in to],
                recvs=[(arrived[j], j) for j in source],
                chunk_bytes=chunk_bytes,
            )
        with device.reading("concatenation", *foreign):
            return torch.cat(arrived, concat_dim)
