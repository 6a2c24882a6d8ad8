"""``refsim time``: predicted seconds and memory of one configuration; no arithmetic is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from refsim.base.errors import UserError
from refsim.base.mesh import Topology
from refsim.cli import options as opt
from refsim.cli import renamed
from refsim.cli.answer import answer, say
from refsim.cli.commands import time_ttnn
from refsim.files import output, tables

if TYPE_CHECKING:
    from refsim.timing.predict.device_memory import TtnnMemory
    from refsim.timing.predict.estimate import Estimate
    from refsim.timing.read.reading import Reading, Shape
    from refsim.timing.report.documents import Time

WeightsDtype = Literal["bf16", "bfp8_b", "bfp4_b"]
Fidelity = Literal["LoFi", "HiFi2", "HiFi3", "HiFi4"]
Source = Literal["reference", "ttnn-mock"]


Fsdp = Annotated[bool | None, opt.scheme(help="Weights cut over sp too.", show_default="where they do not fit")]
OneTopology = Annotated[
    str | None, opt.scheme(help="Linear: leave wrap-around links unused.", show_default="the mesh's")
]
Weights = Annotated[WeightsDtype, opt.precision(help="Matrices of linear layers; activations are bf16.")]
OldWeights = Annotated[Literal["bf16", "bfp8", "bfp4"] | None, typer.Option("--weights", hidden=True)]
MatrixFidelity = Annotated[Fidelity, opt.precision(help="Of linears and attention on the matrix engines.")]
From = Annotated[
    Source, typer.Option("--from", help="ttnn-mock: also price the model's own program in TTNN, as ttnn builds it.")
]
Layers = Annotated[bool, opt.output("--layers", help="Every op by layer: seconds, what bounds it, what would help.")]
TtnnMemory = Annotated[
    Path | None, opt.output(help="What `refsim memory --json` printed, to stand beside the account.")
]
Chakra = Annotated[
    Path | None, opt.output(help="Write Chakra execution traces (MLCommons) into this folder, one a rank.")
]


def time(
    context: typer.Context,
    model: opt.PublishedModel,
    mesh: opt.Mesh,
    parallel: opt.Parallel = "sp1",
    attention: opt.Attention = "ring",
    ring: opt.Ring = None,
    ulysses: opt.Ulysses = None,
    fsdp: Fsdp = None,
    topology: OneTopology = None,
    links: opt.Links = None,
    size: opt.Size = None,
    height: opt.Height = None,
    width: opt.Width = None,
    frames: opt.Frames = None,
    steps: Annotated[int | None, opt.size(help="Denoising steps.", min=1, max=1000)] = None,
    weights_dtype: Weights = "bf16",
    fidelity: MatrixFidelity = "HiFi2",
    calibration: opt.Calibration = None,
    source: From = "reference",
    force: Annotated[bool, typer.Option("--force", help="Predict what does not fit the devices' memory, too.")] = False,
    layers: Layers = False,
    ttnn_memory: TtnnMemory = None,
    trace: Annotated[Path | None, opt.output(help="Write a trace for ui.perfetto.dev here.")] = None,
    chakra: Chakra = None,
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
    old_weights: OldWeights = None,
) -> None:
    """Predict seconds and memory of the denoising loop on a mesh, and what bounds them."""
    from refsim.cli.progress import PATIENCE_S, Spinner

    weights = weights_dtype.removesuffix("_b")  # as the timing model calls its blocks of 16 numbers
    if old_weights is not None:
        renamed.note("`refsim time --weights`", "`refsim time --weights-dtype`")
        weights = old_weights
    _check(context, weights)
    with Spinner(f"reading {model}", after_s=PATIENCE_S):
        from refsim.timing.predict import advice
        from refsim.timing.report.documents import CriticalPath, Time

        predicted, reading, shape, allocated = _predict(context, weights)
        path = CriticalPath.of(predicted, reading) if force or predicted.memory.fits else None
    if path is None:
        _refuse(predicted, as_json)
    _write_traces(predicted, reading, trace, chakra)
    row = Time(**vars(predicted.row()), critical_path=path, unclassified=reading.unclassified)
    _warn_of_undeclared(reading)
    if allocated:
        row.memory_gb.ttnn = allocated.gb()
    if source == "ttnn-mock":
        row.ttnn = time_ttnn.compare(predicted, model, shape)
    if layers:
        row.layers = advice.by_layer(predicted)
    tables.write_csv(row.layers or [row], csv)
    answer(row, lambda _: "\n".join(_lines(predicted, row)), as_json=as_json)


def _check(context: typer.Context, weights: str) -> None:
    """Raise ``UserError`` for options that do not go together, before anything heavy is imported."""
    params = context.params
    _check_targets(params["trace"], params["chakra"])
    tables.check_csv(params["csv"])
    topology = params["topology"]
    if params["source"] == "ttnn-mock":
        ignored = {f"--{name}": params[name] for name in ("topology", "links", "calibration", "fsdp")}
        ignored |= {"--weights-dtype": weights != "bf16", "--fidelity": params["fidelity"] != "HiFi2"}
        time_ttnn.check(params["model"], ignored)
    if topology not in (None, "Linear"):
        raise UserError(f"--topology is Linear or left out (a Ring where the mesh has one), not '{topology}'.")


def _predict(context: typer.Context, weights: str) -> tuple[Estimate, Reading, Shape, TtnnMemory | None]:
    """Read the model at a latent shape and price it; beside it what ttnn's allocator said, where that is given."""
    from refsim.models.figures import Execution
    from refsim.models.registry import find, latent
    from refsim.timing.cost.fitted import read_calibration
    from refsim.timing.predict.device_memory import check_ttnn, read_ttnn
    from refsim.timing.predict.estimate import estimate
    from refsim.timing.read.reading import read_published

    params = context.params
    options = opt.run_options(context, dtype="bf16", weights_dtype="bf16", trace=False)
    config = options.parallel
    links = params["links"]
    name, published = find(params["model"])
    size, shape = latent(published, opt.size_of(*(params[one] for one in ("size", "height", "width", "frames"))))
    allocated = read_ttnn(params["ttnn_memory"]) if params["ttnn_memory"] else None
    if allocated:
        check_ttnn(allocated, published.config, options.mesh, config)
    if links is not None:
        options = options.but(mesh=replace(options.mesh, links=tuple(min(n, links) for n in options.mesh.links)))
    reading = read_published(published, shape, options, batch=config.cfg)
    how = {"size": size, "calibration": read_calibration(params["calibration"]) if params["calibration"] else None}
    wired = Topology.LINEAR if params["topology"] else None
    execution = Execution(params["steps"], params["fsdp"], topology=wired, weights=weights, fidelity=params["fidelity"])
    predicted = estimate(name, options.mesh, config, reading=reading, execution=execution, **how)
    return predicted, reading, shape, allocated


def _check_targets(trace: Path | None, chakra: Path | None) -> None:
    """Raise ``UserError`` unless the traces that are asked for can be written."""
    from refsim.files.trace_events import is_lines

    if trace is not None:
        if is_lines(trace):
            raise UserError(f"a prediction is no log of events, so --trace '{trace}' has no lines; name it FILE.json.")
        output.check_target(trace, "--trace")
    if chakra is not None:
        output.check_folder(chakra, "--chakra")


def _write_traces(predicted: Estimate, reading: Reading, trace: Path | None, chakra: Path | None) -> None:
    from refsim.timing.report import chakra as chakra_traces
    from refsim.timing.report import predicted_trace

    if trace is not None:
        predicted_trace.write(predicted, reading, trace)
    if chakra is not None:
        chakra_traces.write(predicted, chakra)


def _refuse(predicted: Estimate, as_json: bool) -> NoReturn:
    """Say that a configuration does not fit, without its seconds; exit code 1."""
    from refsim.timing.report.documents import DoesNotFit

    m = predicted.memory
    if as_json:
        typer.echo(output.document(DoesNotFit.of(predicted)))
    say(
        f"{predicted.model} {predicted.size} on {predicted.mesh} needs {m.total / 1e9:.1f} GB of "
        f"{m.capacity / 1e9:.1f} GB per device and does not fit; see `refsim plan` for what does, or add --force for "
        "its seconds all the same."
    )
    raise typer.Exit(1)


def _warn_of_undeclared(reading: Reading) -> None:
    """Say on stderr which norms and softmaxes of a model are not priced as the one op that they are on the device."""
    if loose := reading.unclassified:
        counts = ", ".join(f"{count} x {name}" for name, count in loose.items())
        say(
            f"Undeclared reductions, priced as loose ops: {counts}. A norm or a softmax is one op on the device once "
            "its layer says so, as in device.compute('rms_norm', x)."
        )


def _lines(predicted: Estimate, row: Time) -> Iterator[str]:
    from refsim.timing.predict import advice

    m = row.memory_gb
    t = predicted.timeline
    path = row.critical_path
    weights = "" if row.weights == "bf16" else f", weights in {row.weights}"
    stages = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in predicted.around.items())
    kinds = ", ".join(f"{kind} {s / path.overlapped_seconds:.0%}" for kind, s in path.by_kind.items())
    yield (
        f"{predicted.title} {predicted.size} on {predicted.mesh}, {row.parallel}{weights}: {predicted.seconds:.2f} s "
        f"for {predicted.steps} steps ({row.seconds_per_step * 1000:.1f} ms each), predicted; "
        f"{predicted.range()} s with a chance of 80 %."
    )
    if stages:
        yield f"With {stages}: {predicted.total_seconds:.2f} s ({predicted.total_range()} s)."
    else:
        yield "Denoising alone: its encoders and its decoder are not predicted."
    if predicted.calibration:
        yield f"Calibration {predicted.calibration}; ranges are those of the stored calibration."
    elif fitted := predicted.range().fitted:
        yield f"Ranges of {', '.join(fitted)} are partly from operations that parameters were fitted on."
    yield (
        f"Roofline {predicted.desired_seconds:.2f} s; matrix engines {predicted.utilisation:.0%} busy "
        f"at {row.fidelity}; bound by {predicted.bound}; communication exposed {row.exposed_communication:.0%}, "
        f"hidden {t.hidden_ns / t.ns:.0%}."
    )
    if t.beyond > 1:
        yield f"Loops on this chip take {t.beyond:.2f} times what their kernels do."
    if t.throttling > 1:
        yield f"The chips' power limit makes it {t.throttling:.2f} times as long."
    yield (
        f"Critical path {path.overlapped_seconds:.2f} s if every collective ran as soon as what it reads is there "
        f"(dependencies alone {path.dependencies_alone_seconds:.2f} s): {kinds}."
    )
    yield (
        f"Memory per device: weights {m.weights:.2f} + activations {m.activations:.2f} + buffers "
        f"{m.buffers:.2f} GB of {m.capacity:.1f} GB{' (FSDP)' if m.fsdp else ''}"
        f"{'' if m.fits else ': DOES NOT FIT'}."
    )
    if n := m.ttnn:
        yield (
            f"ttnn's allocator ({n.ran}): weights {n.weights:.2f} + transient {n.transient:.2f} + buffers "
            f"{n.buffers:.2f} GB of {n.capacity:.1f} GB."
        )
    for title, shares in (("op class", row.by_kind), ("bound by", row.by_bound)):
        yield f"\n{title:12} {'seconds':>9} {'share':>6}"
        for name, seconds in sorted(shares.items(), key=lambda item: -item[1]):
            yield f"{name:12} {seconds:9.3f} {seconds / predicted.seconds:6.1%}"
    if row.layers is not None:
        yield advice.text(row.layers)
    if row.ttnn is not None:
        yield time_ttnn.text(row.ttnn)
