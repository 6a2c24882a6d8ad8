"""Steps of diffusers' schedulers as linear recurrences: the numbers alone give the latents that the scheduler gives."""

from __future__ import annotations

import json

import pytest
import torch

from refsim.base.errors import UserError
from refsim.pipelines.hosts.schedule import Schedule, recurrences

diffusers = pytest.importorskip("diffusers")

SHAPE = (1, 4, 6, 10)
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 5.0}


def schedule_of(tmp_path, name, config, steps, seed=None):
    getattr(diffusers, name)(**config).save_pretrained(tmp_path)
    return Schedule(tmp_path, steps, generator=None if seed is None else torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 40])
@pytest.mark.parametrize(
    ("name", "config", "longest"),
    [
        ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}, 1),
        ("CogVideoXDDIMScheduler", {}, 1),
        ("CogVideoXDPMScheduler", {}, 2),
        ("UniPCMultistepScheduler", FLOW, 3),
        ("UniPCMultistepScheduler", {**FLOW, "solver_order": 3}, 4),
    ],
    ids=["euler", "ddim", "dpm", "unipc2", "unipc3"],
)
def test_the_numbers_give_what_the_scheduler_gives(tmp_path, name, config, longest, steps):
    seed = 5 if name == "CogVideoXDPMScheduler" else None
    wanted, ours = (schedule_of(tmp_path, name, config, steps, seed) for _ in range(2))
    draw = torch.Generator().manual_seed(1)
    latents = [torch.randn(SHAPE, generator=draw)]
    predictions, theirs = [], latents[0]
    for n, step in enumerate(recurrences(ours)):
        predictions.append(torch.randn(SHAPE, generator=draw))
        assert len(step.latents) == len(step.predictions) <= longest
        found = sum(a * x for a, x in zip(step.latents, reversed(latents), strict=False))
        found = found + sum(b * v for b, v in zip(step.predictions, reversed(predictions), strict=False))
        for _ in range(step.draws):
            noise = torch.randn(SHAPE, generator=ours.generator)
        if step.draws:
            found = found + step.noise * noise
        latents.append(found)
        theirs = wanted.step(predictions[-1], n, theirs)
        assert torch.allclose(found, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_what_is_no_recurrence_is_refused(tmp_path):
    """A scheduler that clips the clean video is not linear."""
    config = {"clip_sample": True, "clip_sample_range": 0.01, "prediction_type": "epsilon"}
    schedule = schedule_of(tmp_path, "DDIMScheduler", config, 3)
    with pytest.raises(UserError, match="no linear recurrence"):
        recurrences(schedule)


def test_more_noise_than_is_known_is_refused(tmp_path, monkeypatch):
    schedule = schedule_of(tmp_path, "CogVideoXDPMScheduler", {}, 2, seed=3)
    plain = Schedule.step

    def wasteful(self, prediction, index, latents):
        for _ in range(5):
            torch.randn(latents.shape, generator=self.generator, dtype=latents.dtype)
        return plain(self, prediction, index, latents)

    monkeypatch.setattr(Schedule, "step", wasteful)
    with pytest.raises(UserError, match="draws more noise"):
        recurrences(schedule)


def test_a_folder_without_a_scheduler_is_refused(tmp_path):
    (tmp_path / "scheduler_config.json").write_text(json.dumps({"_class_name": "NoSuchScheduler"}))
    with pytest.raises(UserError, match="does not have"):
        Schedule(tmp_path, 3)
