"""The program behind ``refsim run`` of a pipeline folder: prompt and noise in, frames out.

    tokens (host) --> encoders --> conditions
    for every time step t:
        expert of t --> transformer on this cfg group's samples --> all samples --> guidance --> scheduler (host)
            ^                                                                                        |
            '------------------------------------------ latents -------------------------------------'
    latents --> decoder --> frames

With cfg2 the two halves of the batch are on two groups (CFG parallel), otherwise they are one batch (CFG fusion); a
pipeline without a negative prompt runs one sample. A part is held only while it runs: encoders one after the other,
one expert at a time (time only goes down, so each is loaded once), the decoder last.

Counterpart: the ``__call__`` of diffusers' pipelines.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refsim.files.tensor_file import TensorFile
from refsim.parallel.cfg import batch_range, gather_batch
from refsim.pipelines.hosts.base import expert_of, with_condition, without_condition
from refsim.pipelines.pipeline import Pipeline, Run, find_pipeline
from refsim.pipelines.request import PipelineRequest
from refsim.pipelines.transformer import digest
from refsim.runtime.device import Device


def program(
    device: Device, *, folder: str, inputs: str, request: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run this device's part; rank 0 returns the frames and what every step gave.

    Args:
        inputs: a safetensors file of what the pipeline's ``prepare`` gave.
        request: the fields of a :class:`refsim.pipelines.request.PipelineRequest`.

    Returns:
        ``frames`` (1, 3, F, H, W) in about -1..1, ``steps`` (steps, 1, ...), the latents after every step, and
        ``decoder_input``, what the decoder was given of the last; seconds per stage, experts of steps, frames' digest.
    """
    root = Path(folder)
    asked = PipelineRequest(**request)
    pipeline = find_pipeline(root)
    clock = _Clock()
    samples = slice(*batch_range(device, pipeline.batch(asked)))
    run = Run(device, root, asked, TensorFile(inputs).all(), samples)
    conditions = pipeline.encode(run)
    clock.lap("encode")
    steps, used = denoise(pipeline, run, conditions)
    clock.lap("denoise")
    frames, decoder_input = pipeline.decode(run, steps[-1])
    clock.lap("decode")
    result = {"digest": digest(frames), "experts": used, "seconds": clock.laps}
    tensors = {"frames": frames, "steps": torch.stack(steps), "decoder_input": decoder_input}
    return result, {name: x.contiguous() for name, x in tensors.items()}


def denoise(pipeline: Pipeline, run: Run, conditions: dict[str, Tensor]) -> tuple[list[Tensor], list[str]]:
    """Return the latents after every step, whole on every device, in fp32, and the name of the expert that ran it."""
    device = run.device
    experts = pipeline.experts(run.root)
    scales = dict(zip((name for name, _ in experts), run.request.guidance_scales, strict=False))
    batch = conditions["encoder_hidden_states"].shape[0]
    scheduler = pipeline.schedule(run)
    latents = run.tensors["latents"]
    transformer: Any = None
    history: list[Tensor] = []
    used: list[str] = []
    loaded = None
    for index, t in enumerate(scheduler.timesteps):
        device.progress(index, len(scheduler.timesteps))
        expert = expert_of(experts, float(t), scheduler.num_train_timesteps)
        if loaded != expert:
            transformer = None  # the one before is let go of first: two do not fit into a device
            transformer = run.load(expert, pipeline.transformer)
            loaded = expert
        device.stage(step=index, expert=expert)
        stream = with_condition(latents, run.tensors)
        sample = transformer(
            hidden_states=stream.to(run.storage).expand(batch, *stream.shape[1:]),
            timestep=pipeline.timestep(t).expand(batch),
            **conditions,
        )
        sample = without_condition(gather_batch(device, sample), run.tensors)
        sample = sample.to(pipeline.guidance_dtype or sample.dtype)
        if pipeline.batch(run.request) == 2:
            sample = pipeline.guided(sample, scales[expert])
        latents = scheduler.step(sample, index, latents)
        history.append(latents)
        used.append(expert)
    device.progress(len(scheduler.timesteps), len(scheduler.timesteps))
    return history, used


class _Clock:
    """Seconds per stage, as this device saw them."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self._last
        self._last = now
