"""``refsim numerics``: what a device's rounding does to a model, and whether a measured PCC is that."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from refsim.base.errors import UserError
from refsim.base.options import WEIGHTS_DTYPES
from refsim.cli import options as opt
from refsim.cli.answer import answer, check_out, say
from refsim.files import output

numerics = typer.Typer(no_args_is_help=True)
Subject = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|FOLDER|CASE",
        help="A random model of parity, a published one (a random block of its widths), a case's id, or a folder.",
    ),
]
Mesh = Annotated[str, opt.scheme(help="Name of a mesh.", show_default="the case's, or n150")]
Parallel = Annotated[str, opt.scheme(help="Factors, e.g. sp2_tp2.", show_default="the case's, or sp1")]
Inputs = Annotated[Path | None, opt.weights(help="Of a folder: safetensors with the arguments of its forward.")]
Level = Annotated[Literal["fast", "exact"], opt.precision(help="exact has the simulator's bits and takes minutes.")]
Spec = Annotated[
    str, opt.precision("--device-numerics", help="What the device is configured to, as `refsim run` takes it.")
]
Pcc = Annotated[float, opt.check(help="PCC that a choice has to reach.", min=-1.0, max=1.0)]
Out = Annotated[Path | None, opt.output(help="Folder for the tables in markdown, and plots.")]


def _make(out: Path | None) -> None:
    """Make the folder of ``--out``; ``UserError`` before anything is computed if nothing can be written there."""
    check_out(out)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)


@numerics.callback()
def _numerics() -> None:
    """Predict what a device's rounding does to a model, and judge a measured PCC by it."""


@numerics.command()
def predict(
    model: Subject,
    mesh: Mesh = "",
    parallel: Parallel = "",
    pcc: Pcc = 0.999,
    size: opt.Size = None,
    inputs: Inputs = None,
    seed: opt.Seed = 0,
    level: Level = "fast",
    out: Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Predict PCC, relative RMSE and gain of each choice, by op, layer and block, with its predicted time beside it."""
    _make(out)
    from parity.cases.store import CheckpointStore
    from parity.rounding import predict as predicting
    from parity.rounding import report, subjects

    with CheckpointStore() as store:
        subject = subjects.find(model, store, inputs=inputs, mesh=mesh, parallel=parallel)
        seconds = None
        untimed: tuple[str, ...] = ()
        if subject.timed is not None:
            try:
                seconds = predicting.seconds_of(subject.timed, subject.options("bf16"), size)
            except UserError as error:  # a class that is not priced, or too small for the usual size
                if size is not None:
                    raise
                untimed = (f"No seconds: {error}",)
        how = {"pcc": pcc, "seed": seed, "level": level, "seconds": seconds}
        prediction = predicting.predict(subject, **how, progress=_quietly(as_json))
        prediction.limits += untimed
    if out is not None:
        name = _file_name(subject.name)
        output.write(out / f"{name}.md", report.text(prediction).encode())
        if seconds is not None:
            report.plot(prediction, out / f"{name}.svg")
    answer(prediction, report.text, as_json=as_json)


@numerics.command()
def judge(
    case: Subject,
    pcc: Annotated[float | None, opt.check(help="The measured PCC of the answer.", min=-1.0, max=1.0)] = None,
    record: Annotated[Path | None, opt.check(help="A device run's PCC by layer: a file or a folder.")] = None,
    mesh: Mesh = "",
    parallel: Parallel = "",
    inputs: Inputs = None,
    device_numerics: Spec = "fast",
    seeds: Annotated[int, opt.weights(min=1, max=100, help="Seeds of weights and inputs.")] = 3,
    as_json: opt.AsJson = False,
) -> None:
    """Say whether rounding explains a measured PCC, or where to look first; exit code 1 where it does not."""
    from parity.cases.store import CheckpointStore
    from parity.rounding import measured, subjects, verdict
    from refsim.base.device_numerics import DeviceNumerics

    DeviceNumerics.parse(device_numerics)
    recorded = measured.read(record) if record is not None else measured.Record()
    whole = pcc if pcc is not None else recorded.whole
    if whole is None and not recorded.layers:
        raise UserError("nothing to judge; give --pcc 0.9961, or --record with a device run's PCC.")
    with CheckpointStore() as store:
        subject = subjects.find(case, store, inputs=inputs, mesh=mesh, parallel=parallel)
        how = {"layers": recorded.layers, "numerics": device_numerics, "seeds": seeds if inputs is None else 1}
        result = verdict.judge(subject, whole, **how, progress=_quietly(as_json))
    answer(result, lambda each: each.text(), as_json=as_json, passed=result.explained)


@numerics.command()
def ingest(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What a device run left: PCC records, profiler CSVs.")],
    model: Annotated[str, opt.check(help="Predict the same beside it: as `judge` takes it.", show_default="none")] = "",
    mesh: Mesh = "",
    parallel: Parallel = "",
    device_numerics: Spec = "fast",
    seeds: Annotated[int, opt.weights(min=1, max=100, help="Seeds of weights and inputs.")] = 1,
    arch: opt.Arch = None,
    as_json: opt.AsJson = False,
) -> None:
    """Put what a device run measured beside what is predicted: PCC of layers, and times of operations."""
    from parity.cases.store import CheckpointStore
    from parity.rounding import ingested, measured, subjects, verdict

    record = measured.read(folder)
    judged = None
    if model and record.pcc:
        with CheckpointStore() as store:
            subject = subjects.find(model, store, mesh=mesh, parallel=parallel)
            how = {"layers": record.layers, "numerics": device_numerics, "seeds": seeds}
            judged = verdict.judge(subject, record.whole, **how, progress=_quietly(as_json))
    times = []
    if record.profiles:
        from benchmarks import trace_accuracy

        table = trace_accuracy.by_class(trace_accuracy.compare(record.profiles, arch))
        times = [ingested.Time(**row) for row in table]
    answer(ingested.beside(record, judged, times), ingested.text, as_json=as_json)


@numerics.command()
def drift(
    pipeline: Annotated[str, typer.Argument(help="A pipeline of parity, such as sd3_pipeline_tiny.")],
    mesh: Mesh = "n150",
    parallel: Parallel = "sp1",
    steps: Annotated[int | None, opt.size(help="Denoising steps.", min=1, max=1000)] = None,
    device_numerics: Annotated[
        list[str] | None, opt.precision("--device-numerics", help="One more to compare; may be repeated.")
    ] = None,
    seed: opt.Seed = 0,
    out: Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show how far latents drift from the exact loop, step by step, as a device rounds and in bf16."""
    _make(out)
    from parity.rounding import drift as drifting
    from parity.rounding import report

    specs = (drifting.BF16, *device_numerics) if device_numerics else drifting.USUAL
    how = {"mesh": mesh, "parallel": parallel, "steps": steps, "numerics": specs, "seed": seed}
    result = drifting.drift(pipeline, **how, progress=_quietly(as_json))
    if out is not None:
        output.write(out / f"drift_{_file_name(pipeline)}.md", report.drift_text(result).encode())
    answer(result, report.drift_text, as_json=as_json)


@numerics.command()
def published(
    models: Annotated[bool, typer.Option(help="Also what needs a model on the ranks.")] = True,
    out: Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Put predicted errors beside published ones of silicon; nothing is fitted to them."""
    _make(out)
    from parity.rounding import published as known
    from parity.rounding import report

    table = known.compare(_quietly(as_json), models=models)
    if out is not None:
        output.write(out / "published.md", report.published_text(table).encode())
    answer(table, report.published_text, as_json=as_json)


@numerics.command()
def bounds(
    suite: Annotated[Literal["smoke", "full"], typer.Option(help="Whose cases.")] = "smoke",
    expr: Annotated[str | None, typer.Option("-k", metavar="EXPR", help="Parts of case ids with and, or, not.")] = None,
    corpus: Annotated[bool, typer.Option("--corpus", help="Cases of the TTNN faults in place of the suite's.")] = False,
    weights_dtype: Annotated[
        list[str] | None, opt.precision(help="Matrices of linear layers; may be repeated. [default: bf16]")
    ] = None,
    numerics: Level = "fast",
    as_json: opt.AsJson = False,
) -> None:
    """Predict what rounding comes to in TTNN cases, over seeds, and store it as their bounds with numerics on."""
    from parity.cases.selection import compile_expression, select
    from parity.faults import hidden as hiding
    from parity.rounding import bounds as bounding

    if corpus:
        matches = compile_expression(expr)
        cases = [case for case in dict.fromkeys(f.case for f in hiding.eligible()) if matches(case.id)]
    else:
        cases = [case for case in select(suite, expr, "ttnn-mock") if case.kind in bounding.KINDS]
    if not cases:
        raise UserError(f"no case that has an error to bound matches -k '{expr}'; leave it out, or say --corpus.")
    wanted = [bounding.with_weights(case, dtype) for dtype in _dtypes(weights_dtype or ["bf16"]) for case in cases]
    made = bounding.make(wanted, numerics=numerics, progress=_quietly(as_json))
    answer(made, lambda each: f"bounds of {len(each.cases)} cases -> {each.file}", as_json=as_json)


@numerics.command()
def hidden(
    count: Annotated[int, typer.Option(min=1, help="Faults to draw.")] = 40,
    cases: Annotated[int, typer.Option(min=1, help="Cases to draw them from.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    numerics: Level = "fast",
    weights_dtype: Annotated[
        list[str] | None, opt.precision(help="Only these; may be repeated.", show_default="all three")
    ] = None,
    out: Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Count the mistakes of the TTNN fault corpus that hide behind rounding; exit code 1 if a clean case alarms."""
    _make(out)
    from parity.faults import hidden as hiding
    from parity.run.backends import check_environment

    faults = hiding.draw(count, cases, seed)
    check_environment([fault.case for fault in faults])
    how = {"seed": seed, "numerics": numerics, "dtypes": _dtypes(weights_dtype or WEIGHTS_DTYPES)}
    result = hiding.run(faults, **how, progress=_quietly(as_json))
    if out is not None:
        output.write(out / "hidden_faults.md", hiding.text(result).encode())
    answer(result, hiding.text, as_json=as_json, passed=not result.false_alarms)


def _dtypes(names: Iterable[str]) -> list[Any]:
    """Return dtypes of weights; ``UserError`` for one that does not exist."""
    for name in names:
        if name not in WEIGHTS_DTYPES:
            raise UserError(f"--weights-dtype '{name}' does not exist; choose of {', '.join(WEIGHTS_DTYPES)}.")
    return list(dict.fromkeys(names))


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", Path(text).name)


def _quietly(quiet: bool) -> Any:
    """Return what says on stderr which run begins, unless it is to be quiet."""
    return (lambda _: None) if quiet else (lambda what: say(f"... {what}"))
