"""The host of the mesh, played by rank 0: it runs diffusers' scheduler and hands every device the next latents.

    devices: transformer --> prediction (replicated)    rank 0: scheduler.step --broadcast over sp, tp, cfg--> latents
                ^                                                                                                 |
                '-------------------------------------------------------------------------------------------------'

The scheduler is a few operations on the latents with a state of its own. Only rank 0 imports diffusers.

Bytes: per step the latents once to every device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from refsim.ccl import broadcast
from refsim.pipelines.hosts.schedule import Schedule
from refsim.runtime.device import Device
from refsim.runtime.watch.activity import Kind


def upload(device: Device, x: Tensor) -> Tensor:
    """Rank 0's ``x`` on every device; the others pass a tensor of the same shape and dtype."""
    for name in ("sp", "tp", "cfg"):  # rank 0 is the first member of each of its groups
        x = broadcast(device, x, device.groups[name], root=0)
    return x


class HostScheduler:
    """A schedule that rank 0 has, its time steps known to every device.

    Args:
        load: gives the schedule; called on rank 0 only.

    Attributes:
        timesteps: (steps,) in float64, in the order they are run.
        num_train_timesteps: what 1.0 in fractions of the schedule stands for.
    """

    def __init__(self, device: Device, load: Callable[[], Schedule]) -> None:
        self._device = device
        self._schedule = None
        count = torch.empty(2, dtype=torch.int64)
        if device.rank == 0:
            device.loading("the scheduler")
            self._schedule = load()
            count = torch.tensor([len(self._schedule.timesteps), self._schedule.num_train_timesteps])
        length, self.num_train_timesteps = upload(device, count).tolist()
        timesteps = torch.empty(length, dtype=torch.float64) if self._schedule is None else self._schedule.timesteps
        self.timesteps = upload(device, timesteps)

    def step(self, prediction: Tensor, index: int, latents: Tensor) -> Tensor:
        """Return the latents after step ``index``, on every device, in the dtype they came in."""
        if self._schedule is not None:
            self._device.activity(Kind.SCHEDULING, step=index)
            latents = self._schedule.step(prediction, index, latents)
        return upload(self._device, latents)
