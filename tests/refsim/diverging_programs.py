"""Programs of which one rank makes another call than its group, ``tests.refsim.diverging_programs:one_diverges``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refsim.ccl import all_gather, all_reduce, broadcast
from refsim.runtime.device import Device

Answer = tuple[dict[str, Any], dict[str, Tensor]]


def one_diverges(device: Device, *, rank: int, how: str) -> Answer:
    """Gather, sum and broadcast over sp; ``rank`` does one thing of it otherwise."""
    group, other = device.groups["sp"], how if device.rank == rank else ""
    x = torch.arange(1024.0) + device.rank
    dtype = {"float32 as int32": torch.int32, "bfloat16 as float16": torch.float16}.get(other)
    if how == "bfloat16 as float16":
        x = x.bfloat16()
    for _ in range(3):  # calls that all ranks agree on, from which the numbers of the next ones follow
        all_gather(device, x, group, dim=0)
    steps = [
        lambda: all_gather(device, x if dtype is None else x.view(dtype), group, dim=0),
        lambda: all_reduce(device, x, group),
        lambda: broadcast(device, x, group, root=3 if other == "another root" else 2),
    ]
    if other == "another order":
        steps[:2] = reversed(steps[:2])
    if other == "one call fewer":
        del steps[1]
    if other == "one call fewer at the end":
        del steps[2]
    if other == "one call more":
        steps.append(steps[1])
    if other == "another dim":
        steps[0] = lambda: all_gather(device, x.view(32, 32), group, dim=1)
    for step in steps:
        step()
    return {}, {}
