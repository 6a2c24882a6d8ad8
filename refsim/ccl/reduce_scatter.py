"""reduce_scatter: member j ends with the sum over members of slice j.

    Ring, step s        slice j starts at member j+1 and walks right; every member it visits adds its own term:
                        ((x[j+1] + x[j+2]) + ...) + x[j]          (indices mod n, member j is the last)

    Line, step s        two walks meet at member j:
                        (x[j] + ((x[0] + x[1]) + ... + x[j-1])) + ((x[n-1] + x[n-2]) + ... + x[j+1])

The running sum has the dtype of the input and is rounded at every hop, as on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.mesh import Topology
from refsim.ccl.exchange import CHUNK_BYTES, exchange
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.runtime.kernels import kernel


def reduce_scatter(device: Device, x: Tensor, group: Group, *, dim: int, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """Sum ``x`` over the members and keep this member's slice of ``dim``.

    Bytes sent per member, Ring and Line alike, in n-1 steps: ``(n-1)/n * B``.

    Raises:
        UserError: ``dim`` does not divide by the group size.
    """
    n = group.size
    i = group.index
    if n == 1:
        return x
    if x.shape[dim] % n:
        raise UserError(
            f"reduce_scatter cannot cut dim {dim} of size {x.shape[dim]} into {n} equal slices; "
            f"pad it to {-(-x.shape[dim] // n) * n}."
        )
    slices = [s.contiguous() for s in x.chunk(n, dim)]
    with device.collective("reduce_scatter", group, x, dim=dim):
        run = _ring if group.topology is Topology.RING else _line
        return run(device, slices, group, i, n, chunk_bytes)


def _ring(device: Device, x: list[Tensor], group: Group, i: int, n: int, chunk_bytes: int) -> Tensor:
    total = x[(i - 1) % n]
    for s in range(n - 1):
        arrived = torch.empty_like(total)
        with device.buffers.transient("reduce_scatter.arrived", arrived):
            exchange(
                device, group, s, sends=[(total, (i + 1) % n)], recvs=[(arrived, (i - 1) % n)], chunk_bytes=chunk_bytes
            )
            with device.reading("add", arrived, step=s):
                total = _hop(arrived, x[(i - 2 - s) % n])
    return total


def _line(device: Device, x: list[Tensor], group: Group, i: int, n: int, chunk_bytes: int) -> Tensor:
    # The walk to the right carries slice n-1-s+i away from member i at step s; the farthest slice goes first, so
    # that member 0 starts, member 1 follows one step later, and so on. The walk to the left is its mirror image.
    from_left: Tensor | None = None
    from_right: Tensor | None = None
    for s in range(n - 1):
        sends = []
        recvs = []
        if s >= i:  # never of the last member: s < n - 1
            local = x[n - 1 - s + i]
            sends.append((local if from_left is None else _hop(from_left, local), i + 1))
        if s >= n - 1 - i:  # nor of the first
            local = x[s - (n - 1 - i)]
            sends.append((local if from_right is None else _hop(from_right, local), i - 1))
        next_left = torch.empty_like(x[i]) if i > 0 and s >= i - 1 else None
        next_right = torch.empty_like(x[i]) if i < n - 1 and s >= n - 2 - i else None
        recvs += [(next_left, i - 1)] if next_left is not None else []
        recvs += [(next_right, i + 1)] if next_right is not None else []
        arrived = [t for t, _ in recvs]
        with device.buffers.transient("reduce_scatter.arrived", *arrived):
            exchange(device, group, s, sends=sends, recvs=recvs, chunk_bytes=chunk_bytes)
            with device.reading("add", *arrived, step=s):
                from_left = next_left
                from_right = next_right
    total = x[i]
    if from_left is not None:
        total = _hop(total, from_left)
    if from_right is not None:
        total = _hop(total, from_right)
    return total


@kernel("hop")
def _hop(arrived: Tensor, term: Tensor) -> Tensor:
    """Add a member's own term to the sum that walks by."""
    return arrived + term
