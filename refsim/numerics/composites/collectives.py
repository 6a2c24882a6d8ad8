"""Collectives that add: one addition a hop, in the dtype of the tensor.

    ring of n:  chunk c starts at device c + 1 --> + device c + 2's --> ... --> + device c's, n - 1 additions
    all_reduce: reduce_scatter, then all_gather, which moves and rounds nothing

The addition is the matrix unit's: 11-bit mantissas into a destination of 16 bits, so ties go away from zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.composites.compute import Compute


def reduce_scatter(
    parts: list[Tensor], *, dim: int = -1, dtype: str = "bfloat16", compute: Compute | None = None
) -> list[Tensor]:
    """Return each device's chunk of the sum of all devices' tensors.

    Args:
        parts: float32 of one shape, one a device in the order of the ring.
        dim: cut into as many chunks as there are devices.
        dtype: of the tensors, rounded to after every hop.
        compute: of the addition; a destination of 16 bits unless the tensors are float32.

    Raises:
        UserError: ``dim`` can't be cut evenly.
    """
    devices = len(parts)
    if parts[0].shape[dim] % devices:
        raise UserError(f"dim {dim} of {parts[0].shape[dim]} can't be cut for {devices} devices; pad it.")
    compute = compute or Compute(fp32_dest_acc_en=dtype == "float32")
    chunks = [part.chunk(devices, dim=dim) for part in parts]
    results = []
    for device in range(devices):
        total = chunks[(device + 1) % devices][device]
        for hop in range(2, devices + 1):
            total = compute.store(compute.add(total, chunks[(device + hop) % devices][device]), dtype)
        results.append(total)
    return results


def all_reduce(
    parts: list[Tensor], *, dim: int = -1, dtype: str = "bfloat16", compute: Compute | None = None
) -> Tensor:
    """Return the sum that every device holds after a reduce-scatter and an all-gather."""
    return torch.cat(reduce_scatter(parts, dim=dim, dtype=dtype, compute=compute), dim=dim)
