"""Classifier-free guidance: negative and positive prompt on two groups of devices, or as one batch on one group.

    CFG parallel   group 0: negative half of the batch --.
                                                           all_gather of the output --> uncond + s (cond - uncond)
                   group 1: positive half -----------------'

    CFG fusion     one group: [negative | positive] as one batch, no communication

Both give the same numbers. The batch is [negative ..., positive ...], as in diffusers, and guidance acts on what the
model predicts (for SD3.5 a velocity), not on the latents.

Bytes sent per member of CFG parallel, B = bytes of its output: ``B``.
"""

from __future__ import annotations

from torch import Tensor

from refsim.base.errors import UserError
from refsim.ccl import all_gather
from refsim.runtime.device import Device


def batch_range(device: Device, batch: int) -> tuple[int, int]:
    """Return the samples [start, stop) of this device's cfg group."""
    group = device.groups["cfg"]
    check_batch(batch, group.size)
    size = batch // group.size
    return group.index * size, (group.index + 1) * size


def check_batch(batch: int, cfg: int) -> None:
    if batch % cfg:
        raise UserError(f"cfg{cfg} cannot split a batch of {batch}; give the negative and the positive sample.")


def gather_batch(device: Device, x: Tensor) -> Tensor:
    """Return the outputs of all cfg groups as one batch, negative first."""
    return all_gather(device, x.contiguous(), device.groups["cfg"], dim=0)


def guide(sample: Tensor, scale: float) -> Tensor:
    """Return ``uncond + scale * (cond - uncond)`` of a batch [uncond ..., cond ...]."""
    if sample.shape[0] % 2:
        raise UserError(f"guidance needs a batch of negative and positive samples, not {sample.shape[0]} samples.")
    uncond, cond = sample.chunk(2)
    return uncond + scale * (cond - uncond)
