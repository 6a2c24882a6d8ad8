"""A whole pipeline, prompt to pictures: the latents of every step and the pictures, judged by diffusers' own run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity import metrics as m
from parity.cases import Case, Layout
from parity.kinds.base import CpuKind, Metrics
from parity.pipelines import PIPELINES
from parity.store import CheckpointStore
from parity.thresholds import FINITE, REPLICAS, Threshold
from refsim.api.images import Generated, generate_images
from refsim.mesh import get_mesh


class Pipeline(CpuKind):
    """A tiny pipeline of ``parity.pipelines``, each run once by diffusers."""

    thresholds: ClassVar = {
        "fp32": (
            Threshold(
                "rel_rmse",
                5e-6,
                "latents after every step as close as one forward of the transformer; guidance multiplies its error by "
                "a few, a step of the scheduler takes a part of it",
            ),
            Threshold("max_pixel_difference", 1, "a value at the border of two of 256 may be rounded to either"),
            Threshold("flat_picture", 0, "a grey picture would equal any other grey picture"),
            REPLICAS,
            FINITE,
        )
    }

    def __init__(self, store: CheckpointStore) -> None:
        super().__init__(store)
        self._references: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Generated:
        options = layout.options(case.dtype, **more)
        return generate_images(self.store.folder(case.model, seed), PIPELINES[case.model].request, options=options)

    def measure(self, case: Case, seed: int, result: Generated) -> Metrics:
        """The worst step's error, the worst pixel, and whether there was a picture to judge."""
        frames, steps = self._reference(case, seed)
        ranks = get_mesh(case.mesh).num_devices
        return {
            "rel_rmse": m.worst([m.rel_rmse(a, b) for a, b in zip(result.steps, steps, strict=True)]),
            "max_pixel_difference": int((result.pixels.to(torch.int16) - frames).abs().max()),
            "flat_picture": int(frames.float().std() <= 10),
            "distinct_replicas": 1 if result.replicas_equal else math.nan if ranks > 1 else 1,
            "non_finite": m.non_finite(result.steps),
        }

    def answers(self, result: Generated) -> dict[str, Tensor]:
        return {"pixels": result.pixels, "steps": result.steps}

    def drop(self, case: Case, seed: int) -> None:
        super().drop(case, seed)
        self._references.pop((case.model, seed), None)

    def _reference(self, case: Case, seed: int) -> tuple[Tensor, Tensor]:
        key = case.model, seed
        if key not in self._references:
            self._references[key] = diffusers_run(case.model, self.store.folder(case.model, seed))
        return self._references[key]


def diffusers_run(name: str, folder: Path) -> tuple[Tensor, Tensor]:
    """(8-bit frames (F, H, W, 3) in int16, latents after every step) of diffusers' own run."""
    import diffusers

    spec, steps = PIPELINES[name], []
    pipe = getattr(diffusers, spec.class_name).from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    pipe.set_progress_bar_config(disable=True)

    def keep(pipe: Any, index: int, t: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        steps.append(tensors["latents"].clone())
        return {}

    asked = spec.request
    extra = {"guidance_scale_2": asked.guidance_2, "num_frames": asked.frames}
    result = pipe(
        asked.prompt,
        negative_prompt=asked.negative_prompt,
        height=asked.height,
        width=asked.width,
        num_inference_steps=asked.steps,
        guidance_scale=asked.guidance,
        generator=torch.Generator().manual_seed(asked.seed),
        max_sequence_length=asked.max_text,
        callback_on_step_end=keep,
        output_type="np",
        **{name: value for name, value in extra.items() if value is not None},
    )
    images = result.images if asked.frames is None else result.frames[0]
    return (torch.from_numpy(images) * 255).round().to(torch.int16), torch.stack(steps)
