"""``refsim run`` of a pipeline folder: prompt in, pictures in a folder, what it took and how exact it was on stdout."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from refsim.api.images import (
    Check,
    Generated,
    Progress,
    Ran,
    check_writer,
    generate_images,
    to_check_against,
    write_pictures,
)
from refsim.base.options import RunOptions
from refsim.base.padded import Padded
from refsim.cli.answer import exit_code
from refsim.cli.progress import StepProgress
from refsim.files import output
from refsim.files.keys import Beside, Document, Key
from refsim.models.registry import PipelineFolder
from refsim.pipelines.request import PipelineRequest


@dataclass(frozen=True)
class Wanted:
    """What a command asks of a pipeline: a folder of pictures, prompts one by one, which checks, a summary in JSON."""

    out: Path
    interactive: bool
    check: bool
    against: Any  # parity.cases.Layout, or None
    as_json: bool


@dataclass
class Pictures(Document):
    """A pipeline from prompt to pictures; what a backend has to say beyond these keys stands beside them.

    Attributes:
        seconds: By stage, and ``total``.
        padded: What refsim's ranks pad, in all models of the pipeline, with what it adds.
    """

    prompt: str
    mesh: str
    parallel: str
    backend: str
    math: str | None
    transport: str | None
    pictures: int
    size: list[int]
    files: list[str]
    seconds: dict[str, float]
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    padded: list[Padded]
    notes: Beside[dict[str, Any]]
    check: Check | None
    check_against: Annotated[Any, Key(form="parity.user.user_checkpoint:CheckAgainst | None")]


def run_pipeline(pipeline: PipelineFolder, request: PipelineRequest, options: RunOptions, wanted: Wanted) -> int:
    """Run once, or (``interactive``) for every line of stdin until ``q``; the exit code: 1 if something disagreed."""
    output.check_folder(wanted.out, "--out", pipeline.root)
    check_writer(pipeline)
    if not wanted.interactive:
        return _once(pipeline, request, options, wanted)
    code = 0
    number = 0
    while (prompt := _ask()) is not None:
        if prompt:
            asked = replace(request, prompt=prompt)
            code |= _once(pipeline, asked, options, replace(wanted, out=wanted.out / f"{number:03d}"))
            number += 1
    return code


def _ask() -> str | None:
    """Return the next line, None at the end or at ``q``."""
    sys.stderr.write("prompt (q ends): ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    return None if not line or line.strip() == "q" else line.strip()


def _once(pipeline: PipelineFolder, request: PipelineRequest, options: RunOptions, wanted: Wanted) -> int:
    where = "" if options.backend == "cpu" else f"{options.backend} "
    title = f"{pipeline.root.name} on {where}{options.mesh}, {options.parallel}, {options.parallel.attention}"
    backend = None if options.backend == "cpu" else _run_ttnn
    then = f"check against {to_check_against(options, backend)[1]}" if wanted.check else ""
    with StepProgress(title, then=then, quiet=wanted.as_json) as progress:
        generated = generate_images(
            pipeline, request, options=options, check=wanted.check, progress=progress, backend=backend
        )
    if generated is None:
        return 0
    files = write_pictures(generated, wanted.out)
    judged = generated.check
    by_library = None
    if wanted.against is not None:
        from parity.user.user_checkpoint import judge_pipeline

        by_library = judge_pipeline(pipeline.root, request, wanted.against, options, generated)
    summary = Pictures(
        prompt=request.prompt,
        mesh=options.mesh.name,
        parallel=str(options.parallel),
        backend=options.backend,
        math=options.math if options.backend == "cpu" else None,
        transport=generated.transport,
        pictures=len(generated.pixels),
        size=list(generated.pixels.shape[1:3]),
        files=[str(path) for path in files],
        seconds={name: round(s, 3) for name, s in (*generated.seconds.items(), ("total", generated.wall_s))},
        replicas_equal=generated.replicas_equal,
        hazards=generated.hazards,
        bytes_by_collective=generated.bytes_by_collective,
        padded=generated.padded,
        notes=generated.notes,
        check=judged,
        check_against=by_library,
    )
    typer.echo(output.document(summary) if wanted.as_json else _text(summary, generated))
    if by_library is not None and not wanted.as_json:
        typer.echo(by_library.text())
    checked = all(one.passed for one in (judged, by_library) if one is not None)
    return exit_code(generated.hazards, passed=generated.replicas_equal and checked)


def _run_ttnn(arguments: dict[str, Any], options: RunOptions, progress: Progress | None) -> Ran:
    """Run a pipeline in TTNN, in a process of its own; see :data:`refsim.api.images.Backend`."""
    from tt_impl.api import run_pipeline as run

    started = time.monotonic()
    outcome = run(arguments, options, progress)
    values = "golden values, kernels not run" if options.backend == "ttnn-mock" else "computed by the device's kernels"
    report = outcome.report | {
        "ran": f"{outcome.ran} ({values})",
        "operations": len(outcome.ops),
        "collectives": len(outcome.collectives),
    }
    if rounding := rounding_of(outcome):
        report |= {"rounding": "; ".join(rounding), "numerics": outcome.numerics}
    sent: Counter[str] = Counter()
    for collective in outcome.collectives:
        sent[f"{collective['collective']}@axis{collective['axis']}"] += collective["bytes"]
    return Ran(
        outcome.tensors, report, time.monotonic() - started, bytes_by_collective=dict(sent), padded=outcome.padded
    )


def rounding_of(outcome: Any) -> list[str]:
    """Say how values were rounded on a ttnn backend, and of which tensors devices hold copies that differ by it."""
    from tt_impl.harness.watch.rounding import sentence

    return [line for line in (sentence([outcome.numerics]), *map(str, outcome.copies)) if line]


def _text(summary: Pictures, generated: Generated) -> str:
    height, width = summary.size
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in summary.seconds.items())
    same = "" if summary.backend != "cpu" else "all ranks agree; " if generated.replicas_equal else "RANKS DISAGREE; "
    lines = [f"{summary.pictures} picture(s) of {height}x{width} -> {summary.files[0]}  ({same}{stages})"]
    lines += [f"pads {padded}" for padded in generated.padded]
    lines += [f"{name}: {note}" for name, note in generated.notes.items() if isinstance(note, str | int)]
    if "dram_left" in generated.notes:
        sizes = {f"with {name}": sizes[1] for name, sizes in generated.notes["dram_of_experts"].items()}
        sizes |= {f"left of {name}": size for name, size in generated.notes["dram_left"].items()}
        lines.append(f"DRAM of a device, MiB: {', '.join(f'{k} {size / 2**20:.1f}' for k, size in sizes.items())}")
    if (check := generated.check) is not None:
        lines += [f"step {i:3d}  PCC {pcc:.12f}" for i, pcc in enumerate(check.step_pcc)]
        verdict = "passed" if check.passed else "FAILED"
        lines.append(
            f"check against {check.against}: {verdict}, PCC of the pictures {check.picture_pcc:.6f}, "
            f"largest difference of a pixel {check.max_pixel_difference}"
        )
    return "\n".join(lines)
