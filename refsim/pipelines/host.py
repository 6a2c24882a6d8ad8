"""The host of the mesh, played by rank 0: it runs diffusers' scheduler and hands every device the next latents.

    devices: transformer --> prediction (replicated)    rank 0: scheduler.step --broadcast over sp, tp, cfg--> latents
                ^                                                                                                 |
                '-------------------------------------------------------------------------------------------------'

The scheduler is a few operations on the latents with a state of its own; on a real mesh it runs on the host as well.
Only rank 0 imports diffusers.

Bytes: per step the latents once to every device.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refsim.ccl import broadcast
from refsim.errors import UserError
from refsim.runtime.activity import Kind
from refsim.runtime.device import Device


def upload(device: Device, x: Tensor) -> Tensor:
    """Rank 0's ``x`` on every device; the others pass a tensor of the same shape and dtype."""
    for name in ("sp", "tp", "cfg"):  # rank 0 is the first member of each of its groups
        x = broadcast(device, x, device.groups[name], root=0)
    return x


class HostScheduler:
    """A diffusers scheduler folder, its time steps known to every device.

    Args:
        set_timesteps: what the scheduler's own ``set_timesteps`` takes besides the number of steps.
        generator: of the noise that some schedulers add at every step; what drew the first latents, as in diffusers.

    Attributes:
        timesteps: (steps,) in float64, in the order they are run.
        num_train_timesteps: what 1.0 in fractions of the schedule stands for.
    """

    def __init__(
        self,
        device: Device,
        folder: Path,
        steps: int,
        *,
        generator: torch.Generator | None = None,
        **set_timesteps: Any,
    ) -> None:
        self._device, self._scheduler, self._generator = device, None, generator
        self._original: Tensor | None = None  # what a DPM of CogVideoX last took the clean video for
        count, timesteps = torch.zeros(2, dtype=torch.int64), torch.empty(0)
        if device.rank == 0:
            device.loading("the scheduler")
            self._scheduler = load_scheduler(folder)
            self._scheduler.set_timesteps(steps, **set_timesteps)
            if hasattr(self._scheduler, "set_begin_index"):
                self._scheduler.set_begin_index(0)
            timesteps = self._scheduler.timesteps.double()
            count = torch.tensor([len(timesteps), self._scheduler.config.num_train_timesteps])
        length, self.num_train_timesteps = upload(device, count).tolist()
        self.timesteps = upload(device, timesteps if device.rank == 0 else torch.empty(length, dtype=torch.float64))

    def step(self, prediction: Tensor, index: int, latents: Tensor) -> Tensor:
        """Return the latents after step ``index``, on every device, in the dtype they came in."""
        if self._scheduler is not None:
            self._device.activity(Kind.SCHEDULING, step=index)
            latents = self._step(prediction, index, latents).to(latents.dtype)
        return upload(self._device, latents)

    def _step(self, prediction: Tensor, index: int, latents: Tensor) -> Tensor:
        step, t = self._scheduler.step, self._scheduler.timesteps
        known = inspect.signature(step).parameters
        noise = {"generator": self._generator} if self._generator is not None and "generator" in known else {}
        if "old_pred_original_sample" not in known:
            return step(prediction, t[index], latents, **noise, return_dict=False)[0]
        before = t[index - 1] if index else None
        latents, self._original = step(prediction, self._original, t[index], before, latents, **noise)
        return latents


def read_scheduler_config(folder: Path) -> dict[str, Any]:
    """Read ``scheduler_config.json`` of a scheduler's folder; ``UserError`` if it is not one."""
    path = folder / "scheduler_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(f"'{path}' is not a scheduler's configuration ({e}).") from e
    if not isinstance(config, dict):
        raise UserError(f"'{path}' does not hold a JSON object.")
    return config


def load_scheduler(folder: Path) -> Any:
    """Load diffusers' scheduler of a folder; ``UserError`` if the folder does not name one."""
    name = read_scheduler_config(folder).get("_class_name")
    import diffusers

    found = getattr(diffusers, name, None) if isinstance(name, str) and name.endswith("Scheduler") else None
    if found is None:
        raise UserError(
            f"'{folder / 'scheduler_config.json'}' names the scheduler {name!r}, which diffusers "
            f"{diffusers.__version__} does not have."
        )
    return found.from_pretrained(folder)
