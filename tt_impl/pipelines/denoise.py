"""The program behind ``refsim run`` of a pipeline folder on a ttnn backend: tokens and noise in, frames out.

    tokens (host) --> encoders, one after the other --> conditions
    for every time step t:
        expert of t --> transformer, a submesh per cfg group --> both halves to every submesh --> guidance --.
            ^                                                                                                |
            '-- latents read and cut into patches (host) <-- latents in fp32 <-- scheduler's step, on the device
    latents --> decoder, on the first submesh --> frames

A part's weights are on the devices only while it runs: encoders one after the other, one expert at a time, the
decoder last; the report says what was left of each stage. Guidance and the scheduler's step run on the
devices, on tensors that lie as the transformer's answer does.

Counterpart of ``refsim.pipelines.denoise``, where every device is a process and the scheduler runs on the host.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import ttnn

from refsim.base.options import RunOptions
from refsim.pipelines.hosts.base import expert_of, with_condition, without_condition
from refsim.pipelines.hosts.schedule import Recurrence, Schedule, recurrences
from refsim.pipelines.request import PipelineRequest
from tt_impl.parallel.cfg import gather_batch
from tt_impl.parallel.context import Context
from tt_impl.pipelines.pipeline import Part, Pipeline, Run, find_pipeline
from tt_impl.pipelines.scheduler import DeviceScheduler, TokenOrder
from tt_impl.pipelines.transformer import submeshes
from tt_impl.run import progress


def program(
    device: ttnn.MeshDevice,
    options: RunOptions,
    *,
    folder: str,
    inputs: dict[str, torch.Tensor],
    request: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Run a pipeline folder on what its host prepared.

    Args:
        inputs: what the pipeline's ``prepare`` gave.
        request: the fields of a :class:`refsim.pipelines.request.PipelineRequest`.

    Returns:
        ``frames`` (1, 3, F, H, W) in about -1..1 and ``steps`` (steps, 1, ...), the latents after every step; seconds
        per stage, the expert of every step, bytes of DRAM that a device still held after each stage, and those that
        it held before an expert was loaded and afterwards.
    """
    root = Path(folder)
    parsed = PipelineRequest(**request)
    pipeline = find_pipeline(root)
    pipeline.check(root)
    groups = submeshes(device, options)
    share = pipeline.batch(parsed) // len(groups)
    runs = [
        Run(submesh, options, root, parsed, inputs, slice(i * share, (i + 1) * share))
        for i, submesh in enumerate(groups)
    ]
    stages = _Stages(groups[0])
    conditions = [pipeline.encode(run) for run in runs]
    stages.over("encode")
    steps, used, dram = denoise(pipeline, runs, conditions)
    stages.over("denoise")
    frames, _ = pipeline.decode(runs[0], steps[-1])
    stages.over("decode")
    report = {"experts": used, "seconds": stages.seconds, "dram_left": stages.left, "dram_of_experts": dram}
    return report, {"frames": frames.float().contiguous(), "steps": torch.stack(steps)}


def denoise(
    pipeline: Pipeline, runs: list[Run], conditions: list[dict[str, torch.Tensor]]
) -> tuple[list[torch.Tensor], list[str], dict[str, list[int]]]:
    """Return the latents after every step in fp32, the name of the expert that ran it, and by expert the DRAM of a
    device, in bytes, that was taken before it was loaded and afterwards.

    ``runs`` and ``conditions`` are those of the cfg groups, negative first.
    """
    first = runs[0]
    experts = pipeline.experts(runs[0].root)
    scales = dict(zip((name for name, _ in experts), first.request.guidance_scales, strict=False))
    schedule = pipeline.scheduler(first.root, first.request, first.tensors)
    numbers = recurrences(schedule)
    groups = [
        Group(run, Context(run.device, run.options), condition) for run, condition in zip(runs, conditions, strict=True)
    ]
    latents = first.tensors["latents"]
    steps = []
    used = []
    dram = {}
    for index, t in enumerate(schedule.timesteps):
        progress.report(index, len(numbers))
        expert = expert_of(experts, float(t), schedule.num_train_timesteps)
        if used[-1:] != [expert]:
            for group in groups:
                group.part = None  # the one before is let go of first: two do not fit into a device
            gc.collect()
            before = dram_taken(first.device)
            for group in groups:
                group.part = group.run.load(expert, group.ctx)
            dram[expert] = [before, dram_taken(first.device)]
        predictions = [group.predict(latents, pipeline.timestep(t)) for group in groups]
        predictions = gather_batch([group.ctx for group in groups], predictions)
        noise = _noise(schedule, numbers[index], latents.shape)
        for group, answer in zip(groups, predictions, strict=True):
            prediction = answer if pipeline.guidance_dtype is None else ttnn.typecast(answer, ttnn.float32)
            if pipeline.batch(first.request) == 2:
                prediction = pipeline.guided(prediction, scales[expert])
            group.step(prediction, index, numbers, noise)
        latents = groups[0].read()
        steps.append(latents)
        used.append(expert)
    progress.report(len(numbers), len(numbers))
    return steps, used, dram


@dataclass
class Group:
    """A cfg group in the loop: its submesh, its conditions, the expert it holds, and its latents.

    Every group steps its own copy of the latents, so that only predictions cross between groups.
    """

    run: Run
    ctx: Context
    conditions: dict[str, torch.Tensor]
    part: Part | None = None
    scheduler: DeviceScheduler | None = None
    latents: ttnn.Tensor | None = None
    order: TokenOrder | None = None
    _sizes: dict[str, int] | None = None

    def predict(self, latents: torch.Tensor, t: torch.Tensor) -> ttnn.Tensor:
        """Return the transformer's answer for this group's samples, (B, 1, local N, C) on the devices."""
        batch = self.conditions["encoder_hidden_states"].shape[0]
        stream = with_condition(latents, self.run.tensors)
        inputs = {
            "hidden_states": stream.to(self.run.storage).expand(batch, *stream.shape[1:]),
            "timestep": t.expand(batch),
            **self.conditions,
        }
        self._sizes = self.part.sizes(**inputs)
        return self.part.model(**inputs)

    def step(self, prediction: ttnn.Tensor, index: int, numbers: list[Recurrence], noise: torch.Tensor | None) -> None:
        """Take step ``index`` with a guided prediction, (1, 1, local N, C)."""
        if self.scheduler is None:
            rows = prediction.shape[2] * self.ctx.sp
            features = prediction.shape[3]
            self.order = TokenOrder(self.ctx, self._read, rows, features)
            self.scheduler = DeviceScheduler(numbers, self.order.put(self.run.tensors["latents"]))
        drawn = None if noise is None else self.order.put(noise)
        self.latents = self.scheduler.step(prediction, index, drawn)

    def read(self) -> torch.Tensor:
        """Fetch the latents (1, ...) to the host."""
        return self._read(self.latents)

    def _read(self, x: ttnn.Tensor) -> torch.Tensor:
        return without_condition(self.part.model.read(x, self._sizes).float(), self.run.tensors)


def _noise(schedule: Schedule, numbers: Recurrence, shape: torch.Size) -> torch.Tensor | None:
    """Draw what the scheduler would add at this step, as it draws it; None if it adds nothing."""
    drawn = None
    for _ in range(numbers.draws):
        drawn = torch.randn(shape, generator=schedule.generator)
    return drawn


class _Stages:
    """Seconds of every stage, and the DRAM of a device, in bytes, that is still taken when it is over."""

    def __init__(self, device: ttnn.MeshDevice) -> None:
        self._device = device
        self._last = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.left: dict[str, int] = {}

    def over(self, name: str) -> None:
        gc.collect()  # what a stage has built goes before the next one builds
        now = time.monotonic()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now
        self.left[name] = dram_taken(self._device)


def dram_taken(device: ttnn.MeshDevice) -> int:
    """Return the DRAM of one device that is allocated now, in bytes, all banks together."""
    view = ttnn.get_memory_view(device, ttnn.BufferType.DRAM)
    return view.num_banks * view.total_bytes_allocated_per_bank
