"""A whole pipeline, prompt to pictures: the latents of every step and the pictures, judged by diffusers' own run."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from parity.cases import Case, Layout
from parity.cases.pipelines import PIPELINES, quietly
from parity.kinds.base import CpuKind, Metrics
from parity.measure import metrics as m
from parity.measure.thresholds import FINITE, REPLICAS, SECONDS, Threshold
from refsim.api.images import Generated, generate_images
from refsim.base.mesh import get_mesh
from refsim.pipelines.request import PipelineRequest


class Pipeline(CpuKind):
    """A tiny pipeline of ``parity.cases.pipelines``, each run once by diffusers.

    Attributes:
        variant: of the folder's weights, see :func:`refsim.files.folder.find_weights`.
    """

    variant: str | None = None

    thresholds: ClassVar = {
        "fp32": (
            Threshold(
                "rel_rmse",
                5e-6,
                "latents after every step as close as one forward of the transformer; guidance multiplies its error by "
                "a few, a step of the scheduler takes a part of it",
            ),
            Threshold(
                "decoder_input_rel_rmse",
                5e-6,
                "the last latents scaled for the decoder, whose pixels would hide a shift that comes too early",
            ),
            Threshold("max_pixel_difference", 1, "a value at the border of two of 256 may be rounded to either"),
            Threshold("flat_picture", 0, "a grey picture would equal any other grey picture"),
            SECONDS,
            REPLICAS,
            FINITE,
        ),
        "bf16": (
            Threshold(
                "one_minus_pcc",
                5e-4,
                "PCC 0.9995 of the latents after the worst step; guidance multiplies the transformer's error by a few, "
                "a step of the scheduler takes a part of it",
            ),
            Threshold("decoder_input_one_minus_pcc", 5e-4, "the last latents scaled for the decoder"),
            Threshold(
                "picture_error",
                4.5e-2,
                "8-bit values behind a decoder in bf16: what PCC 0.999 stands for, sqrt(2 * 1e-3); diffusers' own in "
                "bf16 are 3e-4 to 6e-4 of 1 - PCC from its own in fp32",
            ),
            Threshold("flat_picture", 0, "a grey picture would equal any other grey picture"),
            SECONDS,
            REPLICAS,
            FINITE,
        ),
    }

    def run(self, case: Case, layout: Layout, seed: int, **more: Any) -> Generated:
        options = layout.options(case.dtype, **more)
        return generate_images(self.store.folder(case.model, seed), PIPELINES[case.model].request, options=options)

    def measure(self, case: Case, seed: int, result: Generated) -> Metrics:
        """Return errors of the worst step, the decoder's input and the worst pixel, and whether pictures are flat."""
        ref = self._reference(case, seed)
        steps = self.step_errors(case, seed, result)
        ranks = get_mesh(case.mesh).num_devices
        assert result.decoder_input is not None
        return {
            "rel_rmse": m.worst(steps),
            "one_minus_pcc": m.worst([m.one_minus_pcc(a, b) for a, b in zip(result.steps, ref.steps, strict=True)]),
            "decoder_input_rel_rmse": m.rel_rmse(result.decoder_input, ref.decoder_input),
            "decoder_input_one_minus_pcc": m.one_minus_pcc(result.decoder_input, ref.decoder_input),
            "max_pixel_difference": int((result.pixels.to(torch.int16) - ref.frames).abs().max()),
            "picture_error": m.picture_error(result.pixels, ref.frames),
            "flat_picture": int(m.is_flat(ref.frames)),
            "wrong_seconds": m.wrong_seconds(result.seconds.values(), result.wall_s),
            "distinct_replicas": 1 if result.replicas_equal else math.nan if ranks > 1 else 1,
            "non_finite": m.non_finite(result.steps),
        }

    def step_errors(self, case: Case, seed: int, result: Generated) -> list[float]:
        """Return the relative RMSE of the latents after every step."""
        steps = self._reference(case, seed).steps
        return [m.rel_rmse(a, b) for a, b in zip(result.steps, steps, strict=True)]

    def answers(self, result: Generated) -> dict[str, Tensor]:
        return {"pixels": result.pixels, "steps": result.steps}

    def _reference(self, case: Case, seed: int) -> DiffusersRun:
        return self.once(case, seed, case.dtype, lambda: self._diffusers_run(case, seed))

    def _diffusers_run(self, case: Case, seed: int) -> DiffusersRun:
        folder = self.store.folder(case.model, seed)
        with quietly():
            return diffusers_run(case.model, folder, rounded=case.dtype == "bf16", variant=self.variant)


@dataclass(frozen=True)
class DiffusersRun:
    """What diffusers' own run gave, in fp32.

    Attributes:
        frames: 8-bit values (F, H, W, 3) in int16.
        steps: latents after every step, stacked.
        decoder_input: what the decoder was given.
    """

    frames: Tensor
    steps: Tensor
    decoder_input: Tensor


def diffusers_run(name: str, folder: Path, *, rounded: bool = False, variant: str | None = None) -> DiffusersRun:
    """Run a pipeline in diffusers; ``rounded``: with weights that bf16 can hold."""
    decoder_inputs = []
    pipe = load_pipeline(name, folder, rounded=rounded, variant=variant)
    decode = pipe.vae.decode

    def keep_input(z: Tensor, *args: Any, **more: Any) -> Any:
        decoder_inputs.append(z.clone())
        return decode(z, *args, **more)

    pipe.vae.decode = keep_input
    return DiffusersRun(*frames_and_steps(pipe, PIPELINES[name].request), *decoder_inputs)


def frames_and_steps(pipe: Any, request: PipelineRequest, **more: Any) -> tuple[Tensor, Tensor]:
    """Run a pipeline of diffusers and return 8-bit values (F, H, W, 3) in int16, and the latents after every step."""
    steps = []

    def keep(pipe: Any, index: int, t: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        steps.append(tensors["latents"].clone())
        return {}

    arguments = arguments_of(request) | more
    if (
        inspect.signature(type(pipe).__call__).parameters["guidance_scale"].default is None
    ):  # a number of distilled models
        arguments["true_cfg_scale"] = arguments.pop("guidance_scale")
    result = pipe(prompt=request.prompt, callback_on_step_end=keep, output_type="np", **arguments)
    images = result.frames[0] if hasattr(result, "frames") else result.images
    return (torch.from_numpy(images) * 255).round().to(torch.int16), torch.stack(steps)


def load_pipeline(
    name: str, folder: Path, *, rounded: bool = False, variant: str | None = None, models_of: Any = None
) -> Any:
    """Return the pipeline of a folder in diffusers, in fp32; ``rounded``: with weights that bf16 can hold.

    ``models_of`` is a pipeline whose models are those of the folder, too, so that they need not be read again.
    """
    import diffusers

    spec = PIPELINES[name]
    loaded = {"dtype": torch.bfloat16 if rounded else torch.float32, "local_files_only": True, "variant": variant}
    left_out = {name: part for name, part in spec.arguments.items() if part is None}  # diffusers wants them said again
    if models_of is not None:
        left_out |= {name: part for name, part in models_of.components.items() if isinstance(part, torch.nn.Module)}
    pipe = getattr(diffusers, spec.class_name).from_pretrained(folder, trust_remote_code=False, **left_out, **loaded)
    pipe.to(torch.float32)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def arguments_of(asked: PipelineRequest) -> dict[str, Any]:
    """Return a request as arguments of diffusers' pipeline, without those that are left to it."""
    from PIL import Image

    arguments = {
        "height": asked.height,
        "width": asked.width,
        "num_inference_steps": asked.steps,
        "guidance_scale": asked.guidance,
        "guidance_scale_2": asked.guidance_2,
        "num_frames": asked.frames,
        "max_sequence_length": asked.max_text,
        "negative_prompt": asked.negative_prompt or None,
        "generator": torch.Generator().manual_seed(asked.seed),
        "image": [Image.open(path).convert("RGB") for path in asked.images] or None,
    }
    return {name: value for name, value in arguments.items() if value is not None}
