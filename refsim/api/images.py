"""A diffusers pipeline folder run on a mesh: prompt in, pictures out.

The launching process is the host: it tokenizes, draws the noise and writes files; encoders, transformers and decoder
run on the devices (:mod:`refsim.pipelines.denoise`).
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.api.inputs import as_file, asked_variant
from refsim.api.refuse_nan import check_answer
from refsim.base.config import parse_parallel
from refsim.base.errors import UserError
from refsim.base.finite import check_tensors
from refsim.base.mesh import get_mesh
from refsim.base.options import RunOptions, as_options
from refsim.base.padded import Padded
from refsim.files import output
from refsim.files.checkpoint import Checkpoint
from refsim.files.lora import by_part
from refsim.models.registry import PipelineFolder, look_at_pipeline, spec_of_checkpoint
from refsim.pipelines.pipeline import Pipeline, find_pipeline
from refsim.pipelines.request import PipelineRequest, read_index
from refsim.pipelines.transformer import digest
from refsim.runtime import launch
from refsim.runtime.device import Device
from refsim.runtime.host_memory import check_fits

if TYPE_CHECKING:
    from torch import Tensor

_PROGRAM = "refsim.pipelines.denoise:program"


@dataclass(frozen=True)
class Ran:
    """What a backend gave of a pipeline.

    Attributes:
        tensors: ``frames`` (1, 3, F, H, W) in about -1..1 and ``steps``, the latents after every step; from refsim's
            ranks ``decoder_input`` too, what the decoder was given of the last of them.
        report: ``seconds`` per stage, and what else there is to say of the run.
        replicas_equal: every rank ended with these frames.
        hazards: uses of device buffers that nothing kept apart.
        transport: what moved tensors between refsim's ranks, ``gloo`` or ``shared``.
        padded: what was padded.
        rounded_once: with ``device_numerics``, ops without a numeric rule, and how often.
    """

    tensors: dict[str, Tensor]
    report: dict[str, Any]
    wall_s: float
    replicas_equal: bool = True
    hazards: tuple[str, ...] = ()
    bytes_by_collective: dict[str, int] = field(default_factory=dict)
    transport: str | None = None
    padded: list[Padded] = field(default_factory=list)
    rounded_once: dict[str, int] = field(default_factory=dict)


Progress = Callable[[int, int], None]
Backend = Callable[[dict[str, Any], RunOptions, Progress | None], Ran | None]
"""Runs a pipeline with the arguments of ``denoise.program``; None on torchrun's ranks above 0."""


@dataclass
class Generated:
    """What a pipeline gave.

    Attributes:
        pixels: (frames, height, width, 3) in uint8.
        steps: latents after every denoising step, stacked.
        decoder_input: what the decoder was given of the last of them, scaled; None from a backend that keeps it.
        seconds: per stage, as rank 0 saw it.
        replicas_equal: every rank ended with these frames.
        transport: what moved tensors between refsim's ranks; None from another backend.
        padded: what was padded, in all models of the pipeline.
        notes: what else a backend reported.
        rounded_once: with ``device_numerics``, ops without a numeric rule, and how often.
        check: against another run, None unless asked for.
    """

    pixels: Tensor
    steps: Tensor
    seconds: dict[str, float]
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    wall_s: float
    fps: int
    notes: dict[str, Any] = field(default_factory=dict)
    check: Check | None = None
    decoder_input: Tensor | None = None
    transport: str | None = None
    padded: list[Padded] = field(default_factory=list)
    rounded_once: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """How far a run is from the one it is checked against.

    Attributes:
        step_pcc: Pearson correlation of the latents after every step.
        max_pixel_difference: largest difference of two 8-bit values.
        exact: storage was fp32, where pixels are judged too; bf16 rounds a latent by more than a pixel's step.
        picture_pcc: of all 8-bit values of the pictures; not judged.
        against: what it is checked against, in words.
    """

    KEYS = ("against", "step_pcc", "picture_pcc", "max_pixel_difference", "passed")

    step_pcc: list[float]
    max_pixel_difference: int
    exact: bool
    picture_pcc: float = 1.0
    against: str = "one process"

    @property
    def passed(self) -> bool:
        """Whether every PCC is within 1e-6 of 1 and pixels within 1 (fp32), or every PCC is 0.9995 or more (bf16)."""
        lowest = 1 - 1e-6 if self.exact else 0.9995
        return all(pcc >= lowest for pcc in self.step_pcc) and (not self.exact or self.max_pixel_difference <= 1)


def generate_images(
    folder: str | Path | PipelineFolder,
    request: PipelineRequest,
    *,
    options: RunOptions | None = None,
    check: bool = False,
    progress: Progress | None = None,
    backend: Backend | None = None,
    **settings: Any,
) -> Generated | None:
    """Run a pipeline folder; None on torchrun's ranks above 0.

    Args:
        folder: its path, or what :func:`refsim.models.registry.look_at_pipeline` found there.
        request: prompt, size, steps, guidance and seed.
        options: where and how it runs.
        check: run once more and compare: in a single process, or, what ``backend`` gave, with refsim's ranks on the
            same mesh in the same dtype.
        progress: called now and then with the number of denoising steps that are done and of all of them.
        backend: what runs it if not refsim's own ranks; refsim checks the folder's parts all the same.
        settings: instead of ``options``: ``mesh``, ``parallel`` and any other keyword of
            :meth:`refsim.base.options.RunOptions.of`.

    Raises:
        UserError: anything that does not fit.
        RankFailure: a rank died, raised or hung.
    """
    if not isinstance(folder, PipelineFolder):
        folder = look_at_pipeline(Path(folder), read_index(Path(folder)), asked_variant(options, settings))
    options = as_options(options, settings)
    if check and launch.under_torchrun():
        raise UserError(
            "--check starts a run of its own, which torchrun's ranks cannot; leave out torchrun or --check."
        )
    pipeline = find_pipeline(folder)
    root = folder.root
    _check_request(pipeline, root, request, options)
    pipeline.check(root, Device(options))
    ranks = launch.ranks_here(options)
    check_fits(
        f"{request.steps} steps on {ranks} rank(s)",
        pipeline.sizes(root, request).least_bytes(request.steps, ranks, options.storage.itemsize),
        instead="choose fewer or smaller --steps, --height, --width, --frames or --max-text",
    )
    tensors = pipeline.prepare(root, request)
    pipeline.scheduler(root, request, tensors)  # says here, before any rank is started, what it cannot do
    with as_file(tensors) as inputs:
        arguments = {"folder": str(root), "inputs": str(inputs), "request": asdict(request)}
        result = (backend or run_on_ranks)(arguments, options, progress)
        if result is None:
            return None
        if backend is not None and not options.fault:
            check_tensors(result.tensors, f"it was computed on {options.backend}")
        generated = _generated(result, pipeline.fps)
        if check:
            other, against = to_check_against(options, backend)
            alone = run_on_ranks(arguments, other, progress)
            judged = _compare(generated, _generated(alone, pipeline.fps), options.dtype, against)
            generated = replace(generated, check=judged)
    return generated


def run_on_ranks(arguments: dict[str, Any], options: RunOptions, progress: Progress | None) -> Ran | None:
    """Run a pipeline on refsim's own ranks; see :data:`Backend`."""
    result = launch.execute(_PROGRAM, options, arguments, progress=progress)
    check_answer(result, options)
    if result is None:
        return None
    return Ran(
        result.tensors,
        {name: value for name, value in result.value.items() if name != "digest"},
        result.wall_s,
        replicas_equal={value["digest"] for value in result.values} == {digest(result.tensors["frames"])},
        hazards=tuple(str(hazard) for hazard in result.hazards),
        bytes_by_collective=result.bytes_by_collective,
        transport=result.transport,
        padded=result.padded,
        rounded_once=result.rounded_once,
    )


def to_check_against(options: RunOptions, backend: Backend | None) -> tuple[RunOptions, str]:
    """Return the options of the run that a run is checked against, and what it is in words."""
    plain = options.but(backend="cpu", delay=None, fault="")
    if backend is not None:
        plain = plain.but(math="reference")  # what judges a device rounds as little as it can
        return plain, f"refsim's ranks in {options.dtype}"
    single = get_mesh("n150")
    return plain.but(mesh=single, parallel=parse_parallel("sp1", single)), "one process"


def _check_request(pipeline: Pipeline, root: Path, request: PipelineRequest, options: RunOptions) -> None:
    """Raise ``UserError`` for what was asked of a pipeline that does not have it."""
    cfg = options.parallel.cfg
    if cfg > 1 and not pipeline.classifier_free:
        raise UserError(f"cfg{cfg} needs a negative prompt, which this pipeline does not have; leave out cfg{cfg}.")
    if cfg > 1 and not request.guided:
        raise UserError(f"cfg{cfg} needs guidance above 1, not {request.guidance:g}.")
    experts = [name for name, _ in pipeline.experts(root)]
    if others := by_part(options.lora).keys() - set(experts):
        raise UserError(f"--lora is of {', '.join(sorted(others))}; this pipeline has {' and '.join(experts)}.")
    if request.images and not pipeline.edits(root):
        raise UserError("this pipeline makes pictures of a prompt alone; leave out the pictures to edit.")
    if not request.images and pipeline.edits(root):
        raise UserError("this pipeline edits pictures; give at least one to start from.")
    if request.guidance_2 is not None and len(experts) == 1:
        raise UserError("this pipeline has one transformer; leave out --guidance-2.")
    if options.vae_parallel not in spec_of_checkpoint(Checkpoint(root / "vae")).vae_forms:
        raise UserError("a video's decoder is cut in space only; leave out --vae-parallel.")


def check_writer(folder: Path | PipelineFolder) -> None:
    """Raise ``UserError`` if what a pipeline gives could not be written."""
    if find_pipeline(folder).fps > 1 and importlib.util.find_spec("av") is None:
        raise UserError("a video needs PyAV to be written as MP4; install refsim[oracle].")


def write_pictures(generated: Generated, folder: Path) -> list[Path]:
    """Write a PNG per frame, and for several an MP4 and an animated GIF; return the paths, the MP4 first."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)  # of --interactive: one folder per prompt
    images = [Image.fromarray(frame.numpy()) for frame in generated.pixels]
    written = []
    if len(images) > 1:
        written.append(folder / "video.mp4")
        output.write(written[-1], _mp4(generated))
        content = io.BytesIO()
        duration = 1000 / generated.fps
        images[0].save(content, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)
        written.append(folder / "video.gif")
        output.write(written[-1], content.getvalue())
    for index, image in enumerate(images):
        content = io.BytesIO()
        image.save(content, "PNG")
        written.append(folder / (f"frame_{index:04d}.png" if len(images) > 1 else "image.png"))
        output.write(written[-1], content.getvalue())
    return written


def _mp4(generated: Generated) -> bytes:
    """Encode H.264 at the pipeline's frames per second; an odd row or column, which it cannot hold, is left out."""
    import av

    frames = generated.pixels[:, : generated.pixels.shape[1] // 2 * 2, : generated.pixels.shape[2] // 2 * 2].numpy()
    content = io.BytesIO()
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=generated.fps, options={"crf": "12"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        stream.thread_count = 1  # the same frames, the same bytes
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return content.getvalue()


def _generated(result: Ran, fps: int) -> Generated:
    return Generated(
        pixels=to_pixels(result.tensors["frames"]),
        steps=result.tensors["steps"],
        seconds=result.report["seconds"],
        replicas_equal=result.replicas_equal,
        hazards=list(result.hazards),
        bytes_by_collective=result.bytes_by_collective,
        wall_s=result.wall_s,
        fps=fps,
        notes={name: value for name, value in result.report.items() if name != "seconds"},
        decoder_input=result.tensors.get("decoder_input"),
        transport=result.transport,
        padded=result.padded,
        rounded_once=result.rounded_once,
    )


def to_pixels(frames: Tensor) -> Tensor:
    """Return (1, 3, F, H, W) in about -1..1 as (F, H, W, 3) in uint8."""
    import torch

    pixels = ((frames.float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    return pixels[0].permute(1, 2, 3, 0).contiguous()


def _compare(generated: Generated, other: Generated, dtype: str, against: str) -> Check:
    pcc = [_pcc(a, b) for a, b in zip(generated.steps, other.steps, strict=True)]
    difference = int((generated.pixels.int() - other.pixels.int()).abs().max())
    picture = _pcc(generated.pixels, other.pixels)
    return Check(pcc, difference, exact=dtype == "fp32", picture_pcc=picture, against=against)


def _pcc(a: Tensor, b: Tensor) -> float:
    """Return Pearson's correlation; two equal tensors have 1, constant ones too."""
    import torch

    if torch.equal(a, b):
        return 1.0
    return float(torch.corrcoef(torch.stack([a.double().flatten(), b.double().flatten()]))[0, 1])
