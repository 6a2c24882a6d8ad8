"""diffusers' schedulers, run as they are on the host, or turned into the coefficients of a linear recurrence.

A step of a scheduler is linear in the latents and in what the model predicted, now and in earlier steps:

    x[n+1] = sum_k  a[k] x[n-k]  +  sum_k  b[k] v[n-k]  +  c noise[n]

    Euler flow matching   x[n+1] = x[n] + (sigma[n+1] - sigma[n]) v[n]                          one step back
    DDIM                  x[n+1] = a x[n] + b v[n]                                              one step back
    DPM of CogVideoX      the clean video of this step and of the last, and fresh noise         two steps back
    UniPC, second order   predictor and corrector in one                                        three steps back

so a device needs nothing but these numbers. :func:`recurrences` gets them from the scheduler itself, by running it on
unit vectors: component 0 stands for the first latents, component 1 + n for the prediction of step n.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.pipelines.hosts.scheduler import load_scheduler, set_steps

_LONGEST = 4
"""Steps that a recurrence may look back; UniPC of third order needs them."""
_RESIDUAL = 1e-5
_WITNESSES = 8
_WITNESS = 10.0
"""Components with random numbers of this size: unit vectors alone would not show that a scheduler clips."""


class Schedule:
    """A diffusers scheduler folder with its time steps set.

    Args:
        generator: of the noise that some schedulers add at every step; what drew the first latents, as in diffusers.
        set_timesteps: what the scheduler's own ``set_timesteps`` takes besides the number of steps.

    Attributes:
        timesteps: (steps,) in float64, in the order they are run.
        num_train_timesteps: what 1.0 in fractions of the schedule stands for.
    """

    def __init__(
        self, folder: Path, steps: int, *, generator: torch.Generator | None = None, **set_timesteps: Any
    ) -> None:
        self._arguments = folder, steps, set_timesteps
        self._scheduler = load_scheduler(folder)
        self.generator = generator
        set_steps(self._scheduler, folder, steps, **set_timesteps)
        self._original: Tensor | None = None  # what a DPM of CogVideoX last took the clean video for
        self.timesteps: Tensor = self._scheduler.timesteps.double()
        self.num_train_timesteps: int = self._scheduler.config.num_train_timesteps

    def again(self, generator: torch.Generator | None) -> Schedule:
        """Return the same schedule before its first step, with a generator of its own."""
        folder, steps, set_timesteps = self._arguments
        return Schedule(folder, steps, generator=generator, **set_timesteps)

    def step(self, prediction: Tensor, index: int, latents: Tensor) -> Tensor:
        """Return the latents after step ``index``, in the dtype they came in."""
        step = self._scheduler.step
        t = self._scheduler.timesteps
        known = inspect.signature(step).parameters
        noise = {"generator": self.generator} if self.generator is not None and "generator" in known else {}
        if "old_pred_original_sample" not in known:
            return step(prediction, t[index], latents, **noise, return_dict=False)[0].to(latents.dtype)
        before = t[index - 1] if index else None
        after, self._original = step(prediction, self._original, t[index], before, latents, **noise)
        return after


@dataclass(frozen=True)
class Recurrence:
    """One step as a linear combination; see the top of this file.

    Attributes:
        latents: ``a``, the latents before this step first.
        predictions: ``b``, this step's first.
        noise: ``c``.
        draws: how often the scheduler draws noise in the shape of the latents; the last draw is the one that counts.
    """

    latents: tuple[float, ...]
    predictions: tuple[float, ...]
    noise: float
    draws: int


def recurrences(schedule: Schedule) -> list[Recurrence]:
    """Return the recurrence of every step of a schedule, which is left as it is.

    Raises:
        UserError: a step is no linear combination of the last few latents and predictions.
    """
    steps = len(schedule.timesteps)
    generator = torch.Generator().manual_seed(0)
    run = schedule.again(generator if schedule.generator is not None else None)
    symbols = 2 * steps + 1  # first latents, predictions, noises
    witnesses = _WITNESS * torch.randn((symbols, _WITNESSES), generator=torch.Generator().manual_seed(1))
    stays_zero = torch.zeros((symbols, 1))
    vectors = torch.cat([torch.eye(symbols), witnesses, stays_zero], 1).double()
    latents = [vectors[0]]
    predictions = vectors[1 : steps + 1]
    noises = vectors[steps + 1 :]
    fitted = []
    for n in range(steps):
        before = generator.get_state()
        after = run.step(predictions[n][None, None], n, latents[n][None, None]).flatten()
        draws, drawn = _drawn(before, generator.get_state(), after.shape)
        scale = float(after[-1] / drawn[-1]) if draws else 0.0
        after = after - scale * drawn
        fitted.append(_fit(after, latents, list(predictions[: n + 1]), scale, draws))
        latents.append(after + scale * noises[n])
    return fitted


def _drawn(before: Tensor, after: Tensor, shape: torch.Size) -> tuple[int, Tensor]:
    """Return how many draws of ``shape`` lead from one state of a generator to another, and the last of them."""
    replay = torch.Generator()
    drawn = torch.zeros(shape, dtype=torch.float64)
    replay.set_state(before)
    for draws in range(_LONGEST):
        if torch.equal(replay.get_state(), after):
            return draws, drawn
        drawn = torch.randn(shape, generator=replay, dtype=torch.float64)
    raise UserError("the scheduler draws more noise a step than is known of any; run this pipeline on backend cpu.")


def _fit(after: Tensor, latents: list[Tensor], predictions: list[Tensor], scale: float, draws: int) -> Recurrence:
    """Return the shortest recurrence that gives ``after``, exact within the rounding of the scheduler's own numbers."""
    for length in range(1, min(_LONGEST, len(latents)) + 1):
        parts = latents[: -length - 1 : -1] + predictions[: -length - 1 : -1]
        matrix = torch.stack(parts, -1)
        solved = torch.linalg.lstsq(matrix, after[:, None], driver="gelsd").solution[:, 0]
        error = float((matrix @ solved - after).abs().max())
        if math.isfinite(error) and error <= _RESIDUAL * float(after.abs().max()):
            numbers = solved.tolist()
            return Recurrence(tuple(numbers[:length]), tuple(numbers[length:]), scale, draws)
    raise UserError("a step of the scheduler is no linear recurrence; run this pipeline on backend cpu.")
