"""``refsim run``: one forward of a checkpoint, or a pipeline from prompt to pictures, on refsim's ranks or on ttnn."""

from __future__ import annotations

import dataclasses
import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refsim.base.errors import UserError
from refsim.base.options import Backend, Dtype, Math, PromptLayout, Transport, VAEParallel
from refsim.base.padded import Padded
from refsim.cli import options as opt
from refsim.cli.answer import exit_code, say
from refsim.files import output
from refsim.files.keys import Document, Key

if TYPE_CHECKING:
    from refsim.base.options import RunOptions
    from refsim.files.folder import ModelFolder

_OF_A_PIPELINE = (
    *("negative_prompt", "steps", "guidance_2", "height", "width", "frames", "max_text", "seed", "check"),
    "images",
)
"""Options that mean nothing to a single model."""
pipeline = partial(typer.Option, rich_help_panel="Pipelines")


Folder = Annotated[
    Path, typer.Argument(help="Folder saved by diffusers: one model, or a whole pipeline; or one file of SD3.5.")
]
Out = Annotated[Path, opt.output(help="Model: safetensors for `sample` (and `guided`). Pipeline: a folder.")]
LayoutName = Annotated[
    str,
    opt.scheme(help="Prompt tokens over sp: replicated or split.", autocompletion=opt.among(PromptLayout)),
]
PadHeads = Annotated[bool, opt.scheme(help="Pad heads that do not split evenly, or refuse them.")]
VaeParallel = Annotated[
    str,
    opt.scheme(
        help="What tp cuts of an image's decoder: spatial (columns) or tensor (channels).",
        autocompletion=opt.among(VAEParallel),
    ),
]
Storage = Annotated[
    str | None,
    opt.precision(
        help="Storage: fp32 or bf16.",
        show_default="fp32; bf16 on ttnn and with device numerics",
        autocompletion=opt.among(Dtype),
    ),
]
MathName = Annotated[
    str,
    opt.precision(
        help="Blocks of attention on cpu: storage (torch's kernel in its dtype), reference (one precision above) "
        "or gemm (matrix products in its dtype, softmax in fp32: rounds more, in bf16 faster on some processors).",
        autocompletion=opt.among(Math),
    ),
]
QChunkSize = Annotated[
    int | None,
    opt.precision(help="Query rows per attention chunk on cpu.", show_default="2048; reference math: 256"),
]
KChunkSize = Annotated[
    int | None, opt.precision(help="Key rows per attention chunk on cpu.", show_default="2048; reference math: 512")
]
Inputs = Annotated[Path | None, opt.weights(help="Model: safetensors with the diffusers forward arguments.")]
Lora = Annotated[
    list[str] | None,
    opt.weights(help="LoRA to merge: FILE[:SCALE], of a second expert transformer_2=FILE[:SCALE]; may be repeated."),
]
Guidance = Annotated[
    float | None, opt.weights(help="Model: also write guided = uncond + S (cond - uncond). Pipeline: the scale.")
]
BackendName = Annotated[
    str,
    typer.Option(help="What computes: cpu, ttnn-mock, ttnn-sim or ttnn-device.", autocompletion=opt.among(Backend)),
]
TransportName = Annotated[
    str,
    typer.Option(
        help="Between ranks on cpu: gloo (sockets), shared (each other's memory) or auto.",
        autocompletion=opt.among(Transport),
    ),
]
CheckAgainst = Annotated[
    str | None, opt.check(help="diffusers: judge the answer by the library's own class, which runs it once more.")
]


def run(
    context: typer.Context,
    checkpoint_dir: Folder,
    mesh: opt.Mesh,
    out: Out,
    parallel: opt.Parallel = "sp1",
    attention: opt.Attention = "ring",
    ring: opt.Ring = None,
    ulysses: opt.Ulysses = None,
    ring_order: opt.RingOrder = "step",
    prompt_layout: LayoutName = "replicated",
    pad_heads: PadHeads = True,
    vae_parallel: VaeParallel = "spatial",
    dtype: Storage = None,
    weights_dtype: opt.WeightsDtype = "bf16",
    math: MathName = "storage",
    q_chunk_size: QChunkSize = None,
    k_chunk_size: KChunkSize = None,
    device_numerics: opt.DeviceNumerics = "",
    numerics: opt.Numerics = "off",
    inputs: Inputs = None,
    variant: opt.Variant = None,
    lora: Lora = None,
    guidance: Guidance = None,
    backend: BackendName = "cpu",
    transport: TransportName = "auto",
    timeout_s: opt.Timeout = 300.0,
    prompt: Annotated[str | None, pipeline(help="What to show.")] = None,
    negative_prompt: Annotated[str, pipeline(help="What not to show.")] = "",
    steps: Annotated[int, pipeline(help="Denoising steps.")] = 50,
    guidance_2: Annotated[float | None, pipeline("--guidance-2", help="Scale of the second expert.")] = None,
    height: Annotated[int | None, pipeline(help="Pixels.")] = None,
    width: Annotated[int | None, pipeline(help="Pixels.")] = None,
    frames: Annotated[int | None, pipeline(help="Of a video.")] = None,
    max_text: Annotated[int | None, pipeline(help="Tokens the prompt is padded or cut to.")] = None,
    images: Annotated[list[Path] | None, pipeline("--image", help="Picture to edit; may be repeated.")] = None,
    seed: Annotated[int, pipeline(help="Of the noise it starts from.")] = 0,
    interactive: Annotated[bool, pipeline("--interactive", help="Ask for prompts until q.")] = False,
    check: Annotated[bool, opt.check("--check", help="Pipeline: compare every step with one process.")] = False,
    check_against: CheckAgainst = None,
    trace: opt.Trace = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run one forward of a model on real inputs, or a pipeline from prompt to pictures; every device is a process."""
    folder, whole = _look_at(checkpoint_dir, variant, check_against)
    options = opt.run_options(context, trace=trace is not None)
    against = opt.library_layout(context, options)
    if whole:
        _run_pipeline(context, folder, options, against)
        return
    _refuse_options_of_a_pipeline(context, checkpoint_dir)
    if inputs is None:
        raise UserError(f"'{checkpoint_dir}' is one model; give --inputs FILE with the arguments of its forward.")
    _check_files(checkpoint_dir, inputs, out, trace, backend=options.backend)
    forward = _run_model if options.backend == "cpu" else _run_ttnn
    forward(_Asked(folder, inputs, out, guidance, trace, against), options, as_json=as_json)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """One forward as the command line asks for it."""

    checkpoint: ModelFolder
    inputs: Path
    out: Path
    guidance: float | None
    trace: Path | None
    against: Any  # parity.cases.Layout, or None


def _look_at(folder: Path, variant: str | None, check_against: str | None) -> tuple[Any, bool]:
    """Return what a folder holds, and whether it is a pipeline; ``UserError`` if it is nothing that could run.

    With ``check_against`` it is told before what a class that refsim does not have would take.
    """
    from refsim.models.registry import look_at, look_at_pipeline
    from refsim.pipelines.request import is_pipeline, read_index

    if is_pipeline(folder):
        return look_at_pipeline(folder, read_index(folder), variant), True
    try:
        return look_at(folder, variant), False
    except UserError:
        more = ""
        if check_against == "diffusers" and (folder / "config.json").is_file():
            from parity.user.unknown_class import what_it_takes

            more = what_it_takes(folder)
        if more:
            say(more)
        raise


def _refuse_options_of_a_pipeline(context: typer.Context, model: Path) -> None:
    """Raise ``UserError`` for an option that was given and that a single model has no use for."""
    if context.params["prompt"] is not None or context.params["interactive"]:
        raise UserError(f"'{model}' is one model and no pipeline (no model_index.json); give --inputs instead.")
    for name in _OF_A_PIPELINE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = "--image" if name == "images" else "--" + name.replace("_", "-")
            instead = "judge it with --check-against diffusers" if name == "check" else "leave it out"
            raise UserError(f"{flag} is an option of pipelines, and '{model}' is one model; {instead}.")


def _check_files(checkpoint: Path, inputs: Path, out: Path, trace: Path | None, *, backend: str) -> None:
    from refsim.files.trace_events import is_lines

    output.check_target(out, "--out", inputs, checkpoint)
    if trace is not None:
        output.check_target(trace, "--trace", inputs, checkpoint)
        if trace.resolve() == out.resolve():
            raise UserError(f"--trace and --out are both '{trace}'; give each a file of its own.")
        if backend != "cpu" and not is_lines(trace):
            raise UserError(
                "a forward in TTNN keeps no times, its trace is a list of operations; name --trace FILE.jsonl, or take "
                "`refsim ttnn run --report` of a script."
            )


def _run_pipeline(context: typer.Context, pipeline: Any, options: RunOptions, against: Any) -> None:
    """Run a pipeline as the command line asks for it; ``against`` is what library judges it, or None."""
    from refsim.pipelines.request import PipelineRequest
    from refsim.runtime import launch

    params = context.params
    if params["inputs"] is not None or params["trace"] is not None:
        raise UserError("a pipeline takes --prompt and writes pictures; leave out --inputs and --trace.")
    if params["prompt"] is None and not params["interactive"]:
        raise UserError(f"'{params['checkpoint_dir']}' is a pipeline; give --prompt TEXT or --interactive.")
    request = PipelineRequest(**{"prompt": ""} | opt.values_for(PipelineRequest, context))
    if options.backend == "cpu":
        launch.warm_up()
    else:
        from tt_impl.api import check_options

        check_options(options)
    from refsim.cli.commands.pipeline import Wanted, run_pipeline

    code = run_pipeline(pipeline, request, options, Wanted(**opt.values_for(Wanted, context), against=against))
    if code:
        raise typer.Exit(code)


@dataclasses.dataclass
class _Summary(Document):
    """One forward of a model.

    Attributes:
        factors: Factor and mesh axis, by scheme.
        outputs: Shapes of the tensors in ``out``.
        padded: What is padded, with what it adds.
    """

    mesh: str
    parallel: str
    factors: dict[str, Any]
    attention: str
    dtype: str
    backend: str
    math: str | None
    transport: str | None
    outputs: dict[str, list[int]]
    padded: list[Padded]
    out: str
    trace: str | None


@dataclasses.dataclass
class Forward(_Summary):
    """One model on refsim's ranks.

    Attributes:
        device_numerics: A device's roundings that ops were computed with; empty for none.
        rounded_once: Ops without a numeric rule, which torch rounded once, and how often.
    """

    ranks: int
    replicas_equal: bool
    hazards: list[str]
    bytes_by_collective: dict[str, int]
    device_numerics: str
    rounded_once: dict[str, int]
    wall_s: float
    check_against: Annotated[Any, Key(form="parity.user.user_checkpoint:CheckAgainst | None")]


@dataclasses.dataclass
class ForwardInTtnn(_Summary):
    """One model on a ttnn backend.

    Attributes:
        numerics: How the mock rounded: level, and operations rounded as their kernels do or once, by name.
        copies: Tensors that devices hold whole and rounded otherwise, with how far the farthest is from device 0's.
    """

    ran: str
    operations: int
    collectives: list[dict[str, Any]]
    numerics: dict[str, Any]
    copies: list[dict[str, Any]]
    wall_s: float


def _summary(asked: _Asked, options: RunOptions, gave: Any, transport: str | None = None) -> dict[str, Any]:
    """Return the fields that both kinds of backend have, for the class of the one or the other that gave a result."""
    parallel = options.parallel
    return {
        "mesh": options.mesh.name,
        "parallel": str(parallel),
        "factors": {k: dataclasses.asdict(v) for k, v in vars(parallel).items()},
        "attention": parallel.attention,
        "dtype": options.dtype,
        "backend": options.backend,
        "math": options.math if options.backend == "cpu" else None,
        "transport": transport,
        "outputs": {name: list(t.shape) for name, t in gave.tensors.items()},
        "padded": gave.padded,
        "out": str(asked.out),
        "trace": str(asked.trace) if asked.trace else None,
    }


def _say_padded(summary: _Summary) -> None:
    """Print a line for everything that is padded."""
    for padded in summary.padded:
        typer.echo(f"pads {padded}")


def _title(asked: _Asked, options: RunOptions) -> str:
    backend = "" if options.backend == "cpu" else f"{options.backend} "
    return f"{asked.checkpoint.path.name} on {backend}{options.mesh}, {options.parallel}, {options.parallel.attention}"


def _run_model(asked: _Asked, options: RunOptions, *, as_json: bool) -> None:
    """Run the forward on refsim's own ranks; exit code 1 where ranks disagree or a hazard was found."""
    from refsim.cli.progress import Spinner
    from refsim.runtime import launch

    launch.warm_up()
    with Spinner(_title(asked, options), quiet=as_json):
        from refsim import api

        judged = None
        arguments = {"inputs": asked.inputs, "options": options, "guidance": asked.guidance, "out": asked.out}
        if asked.against is None:
            result = api.run(asked.checkpoint, **arguments)
        else:
            from parity.user.user_checkpoint import judge_model

            result, judged = judge_model(asked.checkpoint, asked.against, **arguments)
    if result is None:
        return
    if asked.trace is not None:
        from refsim.runtime.watch import measured_trace

        measured_trace.write(result.trace, asked.trace, _title(asked, options))
    summary = Forward(
        **_summary(asked, options, result, result.transport),
        ranks=options.mesh.num_devices,
        replicas_equal=len(set(result.value["digests"])) == 1,
        hazards=[str(hazard) for hazard in result.hazards],
        bytes_by_collective=result.bytes_by_collective,
        device_numerics=options.device_numerics,
        rounded_once=result.rounded_once,
        wall_s=round(result.wall_s, 3),
        check_against=judged,
    )
    if as_json:
        typer.echo(output.document(summary))
    else:
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in summary.outputs.items())
        sent = sum(result.bytes_by_collective.values()) / 1e6
        same = "all ranks agree" if summary.replicas_equal else "RANKS DISAGREE"
        ranks = f"{options.mesh.num_devices} ranks, {same}, {sent:.1f} MB sent, {result.wall_s:.2f} s"
        typer.echo(f"{shapes} -> {asked.out}  ({ranks})")
        _say_padded(summary)
        if options.device_numerics:
            typer.echo(f"computed as a device does ({options.device_numerics}); {_without_rule(result.rounded_once)}")
        if asked.trace is not None:
            typer.echo(f"trace of {len(result.trace)} events -> {asked.trace}")
        if judged is not None:
            typer.echo(judged.text())
    passed = summary.replicas_equal and (judged is None or judged.passed)
    raise typer.Exit(exit_code(summary.hazards, passed=passed))


def _without_rule(counts: dict[str, int]) -> str:
    """Say which ops torch rounded once for want of a numeric rule."""
    names = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
    return f"without a rule, rounded once: {names}" if names else "every op has a rule"


def _run_ttnn(asked: _Asked, options: RunOptions, *, as_json: bool) -> None:
    """Run the forward in TTNN, in a process of its own."""
    from refsim.cli.commands.pipeline import rounding_of
    from refsim.cli.progress import Spinner
    from tt_impl import api

    api.check_options(options)
    started = time.monotonic()
    with Spinner(_title(asked, options), quiet=as_json):
        from refsim.api.validate import check_run

        check_run(asked.checkpoint, asked.inputs, options, guidance=asked.guidance)
        outcome = api.run(
            asked.checkpoint.path, inputs=asked.inputs, options=options, guidance=asked.guidance, out=asked.out
        )
    if asked.trace is not None:
        output.write(asked.trace, "".join(json.dumps(op) + "\n" for op in outcome.ops).encode(), "--trace")
    common = _summary(asked, options, outcome)
    wall_s = round(time.monotonic() - started, 3)
    summary = ForwardInTtnn(
        **common,
        ran=outcome.ran,
        operations=len(outcome.ops),
        collectives=outcome.collectives,
        numerics=outcome.numerics,
        copies=[vars(one) for one in outcome.copies],
        wall_s=wall_s,
    )
    if as_json:
        typer.echo(output.document(summary))
        return
    shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in summary.outputs.items())
    typer.echo(f"{shapes} -> {asked.out}  ({len(outcome.ops)} operations, {summary.wall_s:.2f} s)")
    _say_padded(summary)
    mock = options.backend == "ttnn-mock"
    values = "golden values, kernels not run" if mock else "computed by the device's kernels"
    typer.echo(f"ran on {outcome.ran} ({values})")
    for line in rounding_of(outcome):
        typer.echo(line)
