"""A scheduler's steps as linear recurrences, which devices run, judged by diffusers' scheduler on the same predictions.

Nothing is cut and there are no ranks: the coefficients are made on the host. The case's ``model`` is a name in
``SCHEDULES``.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, ClassVar

import diffusers
import torch
from torch import Tensor

from parity.cases import Case, Layout
from parity.cases.inputs import generator
from parity.kinds.base import CpuKind, Metrics
from parity.measure import metrics as m
from parity.measure.thresholds import FINITE, Threshold
from refsim.base import scratch
from refsim.pipelines.hosts.schedule import Recurrence, Schedule, recurrences
from refsim.runtime.launch import Result

STEPS = 7
"""The fewest at which UniPC of third order looks back as far as it ever does, at the last step but one."""
_FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 5.0}
SCHEDULES: dict[str, tuple[str, dict[str, Any], int]] = {
    "schedule_euler": ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}, 1),
    "schedule_ddim": ("CogVideoXDDIMScheduler", {"prediction_type": "v_prediction"}, 1),
    "schedule_dpm": ("CogVideoXDPMScheduler", {"prediction_type": "v_prediction", "timestep_spacing": "trailing"}, 2),
    "schedule_unipc": ("UniPCMultistepScheduler", _FLOW, 3),
    "schedule_unipc_3": ("UniPCMultistepScheduler", _FLOW | {"solver_order": 3}, 4),
}
"""Class and configuration of a scheduler, and how many steps its method looks back."""


class ScheduleSteps(CpuKind):
    """Latents and predictions in, the latents after every step out."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold(
                "rel_rmse",
                1e-6,
                "diffusers' Euler rounds the latents to fp32 at every step, by 6e-8 of their size, the others compute "
                "in float64 as here; a coefficient of order 1 that is off in its last place in fp32 is seen",
            ),
            Threshold(
                "wrong_steps", 0, "as many steps, at the same times, and none looks further back than its method"
            ),
            FINITE,
        )
    }

    def inputs(self, case: Case, seed: int) -> list[Tensor]:
        """Return the first latents, and what the model predicts at every step."""
        g = generator(seed, "schedule")
        return [torch.randn(case.shape.latent, generator=g, dtype=torch.float64) for _ in range(STEPS + 1)]

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Result:
        begun = time.monotonic()
        name, config, _ = SCHEDULES[case.model]
        with scratch.Folder("schedule") as folder:
            (Path(folder) / "scheduler_config.json").write_text(json.dumps({"_class_name": name} | config))
            schedule = Schedule(Path(folder), STEPS, generator=noises(seed))
            steps = recurrences(schedule)
        latents = apply(steps, self.inputs(case, seed), noises(seed))
        back = torch.tensor([[len(step.latents), len(step.predictions)] for step in steps])
        tensors = {"latents": latents, "timesteps": schedule.timesteps, "back": back}
        return Result([{}], tensors, {}, [], wall_s=time.monotonic() - begun)

    def measure(self, case: Case, seed: int, result: Result) -> Metrics:
        """Return the metrics of the worst step."""
        times, ref = self.reference(case, seed)
        latents = result.tensors["latents"]
        back = result.tensors["back"]
        if len(latents) != len(ref):
            return {"rel_rmse": math.nan, "wrong_steps": abs(len(latents) - len(ref)), "non_finite": 0}
        errors = [m.rel_rmse(ours, theirs) for ours, theirs in zip(latents, ref, strict=True)]
        wrong = (result.tensors["timesteps"] != times) | (back > SCHEDULES[case.model][2]).any(1)
        return {"rel_rmse": m.worst(errors), "wrong_steps": int(wrong.sum()), "non_finite": m.non_finite(latents)}

    def reference(self, case: Case, seed: int) -> tuple[Tensor, Tensor]:
        """Return the time steps and the latents after each of them, as diffusers' scheduler gives them."""
        name, config, _ = SCHEDULES[case.model]
        scheduler = getattr(diffusers, name)(**config)
        scheduler.set_timesteps(STEPS)
        x, *predictions = self.inputs(case, seed)
        latents = []
        clean = None
        before = None
        noise = noises(seed)
        for t, prediction in zip(scheduler.timesteps, predictions, strict=True):
            if name == "CogVideoXDPMScheduler":
                x, clean = scheduler.step(prediction, clean, t, before, x, generator=noise, return_dict=False)
            else:
                x = scheduler.step(prediction, t, x, return_dict=False)[0]
            before = t
            latents.append(x)
        return scheduler.timesteps.double(), torch.stack(latents)


def noises(seed: int) -> torch.Generator:
    """Return what draws the noise that a scheduler adds."""
    return generator(seed, "schedule noise")


def apply(steps: list[Recurrence], tensors: list[Tensor], noise: torch.Generator) -> Tensor:
    """Compute the latents after every step by the coefficients alone, from the first ones and all predictions."""
    latents = tensors[:1]
    predictions = list[Tensor]()
    for step, prediction in zip(steps, tensors[1:], strict=True):
        predictions.append(prediction)
        x = sum(a * y for a, y in zip(step.latents, reversed(latents), strict=False))
        x = x + sum(b * v for b, v in zip(step.predictions, reversed(predictions), strict=False))
        drawn = [torch.randn(prediction.shape, generator=noise, dtype=prediction.dtype) for _ in range(step.draws)]
        latents.append(x + step.noise * drawn[-1] if drawn else x)
    return torch.stack(latents[1:])
