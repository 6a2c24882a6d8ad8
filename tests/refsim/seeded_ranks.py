"""Mistakes put into one rank of this project's own tensor parallelism and upload of the host's input.

``RunOptions.fault`` names one as ``tests.refsim.seeded_ranks:another_root``; the program they are put into is
:func:`upload_and_pair`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity.faults.around import at
from refsim.ccl import all_gather
from refsim.pipelines.host import upload
from refsim.runtime.device import Device
from tests.refsim.programs import megatron_pair

Answer = tuple[dict[str, Any], dict[str, Tensor]]
ODD = 5


def upload_and_pair(device: Device) -> Answer:
    """Upload a tensor of the host's, then multiply by a column-parallel and a row-parallel weight."""
    upload(device, torch.arange(16.0))
    return megatron_pair(device, features=64, hidden=128, padded=128, garbage=0.0)


@at("refsim.parallel.tensor:reduce_scatter")
def another_dtype(original: Any, device: Device, x: Tensor, *group: Any, **how: Any) -> Tensor:
    """A partial sum is rounded to bfloat16 before it is sent."""
    return original(device, x.bfloat16() if device.rank == ODD else x, *group, **how)


@at("refsim.parallel.tensor:reduce_scatter")
def another_order(original: Any, device: Device, x: Tensor, *group: Any, **how: Any) -> Tensor:
    """The gather that comes after the sum is called before it."""
    if device.rank == ODD:
        all_gather(device, x, *group, **how)
    return original(device, x, *group, **how)


@at("refsim.pipelines.host:broadcast")
def another_root(original: Any, device: Device, x: Tensor, *group: Any, root: int) -> Tensor:
    """The host's tensor is taken from the second rank of a group."""
    return original(device, x, *group, root=root + (device.rank == ODD and group[0].size > 1))


@at("refsim.parallel.tensor:reduce_scatter")
def one_call_fewer(original: Any, device: Device, x: Tensor, *group: Any, dim: int) -> Tensor:
    """The sum is left out, as a branch that one rank alone takes does."""
    return x.chunk(group[0].size, dim)[group[0].index] if device.rank == ODD else original(device, x, *group, dim=dim)
