"""``refsim bench``: benchmarks of this machine, and predictions beside measurements of others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from refsim.base import scratch
from refsim.base.errors import UserError
from refsim.base.torchrun import under_torchrun
from refsim.cli import options as opt
from refsim.cli.answer import answer, check_out, say
from refsim.files import keys, output, tables

bench = typer.Typer(no_args_is_help=True)
Ranks = Annotated[int, opt.scheme(help="Devices of the mesh, each a process.")]
Rows = Annotated[int, opt.size(help="Tokens.")]
Heads = Annotated[int, opt.size(help="Attention heads.")]
HeadDim = Annotated[int, opt.size(help="Features of a head.")]
Repetitions = Annotated[int, typer.Option(min=1, help="Rounds of measurements that count.")]


@bench.callback()
def _bench() -> None:
    """Measure on this machine, and show predictions beside measurements of others."""


def _starts_ranks() -> None:
    """Raise ``UserError`` under torchrun, whose ranks cannot start others."""
    if under_torchrun():
        raise UserError("this benchmark starts its own ranks; run it without torchrun.")


def _chosen(names: list[str] | None, known: Iterable[str], unknown: str, mark: str) -> list[str]:
    """Return the names of an option, all that are known if there are none; ``UserError`` for one that is unknown."""
    known = list(known)
    for name in names or []:
        if name not in known:
            raise UserError(f"{unknown.format(name)}; choose one of {mark.join(known)}.")
    return names or known


@bench.command()
def draft(
    out: Annotated[Path, opt.output(help="Folder for the two tables.")] = Path("reports/draft"),
    predicted_only: Annotated[bool, typer.Option("--predicted-only", help="Leave measured.md as it is.")] = False,
) -> None:
    """Show the DFlash drafter by context length: predicted beside the document's figures, and measured on CPU."""
    from benchmarks.draft import write

    check_out(out)
    write(out, say, measured=not predicted_only)


@bench.command()
def accuracy(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Profiler files (CSV), folders of them, or the model's own data; none: published pipelines.",
            exists=True,
        ),
    ] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Of a folder: the calibration shapes one by one too.")
    ] = False,
    arch: opt.Arch = None,
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show errors of the timing model on profiler files: by class, by device, the worst, and what has no price.

    Without files: whether published pipelines and wirings are predicted in the right order, and how far apart.
    """
    tables.check_csv(csv)
    if not files:
        from refsim.timing.report import ranking

        known = ranking.runs(say), ranking.wirings(), ranking.others(say)
        document = ranking.document(*known)
        tables.write_csv(document.figures, csv)
        answer(document, lambda _: ranking.markdown(*known), as_json=as_json)
        return
    from refsim.timing.fit import measured

    folders = [path for path in files if path.is_dir()]
    if folders and not any((folder / name).is_file() for folder in folders for name in measured.CALIBRATION):
        files = [file for path in files for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
        if not files:
            raise UserError(f"{folders[0]} has no CSV file of ttnn's profiler.")
    elif folders:
        if len(files) > 1 or as_json or csv:
            raise UserError("a folder stands alone and has no --json and no --csv; give its CSV files instead.")
        from benchmarks.accuracy import print_tables

        print_tables(files[0], shapes=shapes)
        return
    from benchmarks import trace_accuracy

    compared = trace_accuracy.compare(files, arch)
    profiled = trace_accuracy.document(compared)
    tables.write_csv(profiled.devices, csv)
    answer(profiled, lambda _: trace_accuracy.text(compared), as_json=as_json)


@bench.command()
def hazards(
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of runs per case, at least.")] = 12,
    as_json: opt.AsJson = False,
) -> None:
    """Measure what it costs to look for hazards: the same run with and without, in turn."""
    from benchmarks.hazards import HazardCosts, compare_all, text

    records = compare_all(pairs, say=say)
    answer(HazardCosts(records), lambda _: "\n".join(map(text, records)), as_json=as_json)


@bench.command()
def values(
    mesh: opt.Mesh = "t3k",
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of measurements per operation.")] = 15,
    as_json: opt.AsJson = False,
) -> None:
    """Measure what golden values cost: ttnn operations on a mock mesh with and without them, in turn."""
    from tt_impl.harness.reports.speed import HEADER, ValueCosts, measure, text

    records = measure(mesh, rounds)
    answer(ValueCosts(mesh, records), lambda _: "\n".join([HEADER, *map(text, records)]), as_json=as_json)


@bench.command()
def sim(
    ranks: Ranks = 8,
    rows: Rows = 2048,
    heads: Heads = 8,
    head_dim: HeadDim = 64,
    dtype: opt.Dtype = "bf16",
    math: Annotated[str, opt.precision(help="storage, reference or gemm, as of `refsim run`.")] = "storage",
    scheme: Annotated[list[str] | None, opt.scheme(help="ring or ulysses; may be given twice.")] = None,
    repetitions: Repetitions = 3,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
) -> None:
    """Measure what it costs to play a mesh: attention on its ranks and in one process on the same cores, in turn."""
    from benchmarks.sim import SCHEMES, Setup, Simulations, machine, measure, text

    _starts_ranks()
    names = _chosen(scheme, SCHEMES, "scheme '{}' is not measured", ", ")
    setup = Setup(ranks, rows, heads, head_dim, dtype, math, repetitions, seed)
    for name in names:
        setup.options(name)  # what does not fit is refused before the first second is spent
    records = [measure(setup, name, say=say) for name in names]
    passed = all(record.right and not record.hazards for record in records)
    simulations = Simulations(machine(), records)
    answer(simulations, lambda _: "\n".join(map(text, records)), as_json=as_json, passed=passed)


@bench.command()
def peers(
    ranks: Ranks = 8,
    rows: Rows = 2048,
    heads: Heads = 8,
    head_dim: HeadDim = 64,
    dtype: opt.Dtype = "fp32",
    peer: Annotated[list[str] | None, typer.Option(help="One alone; may be given several times.")] = None,
    repetitions: Repetitions = 3,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
) -> None:
    """Measure ring attention and Ulysses beside other libraries' on the same ranks, in turn; `nox -s bench`.

    A library that cannot run on CPU, or answers wrongly, is listed and counted; exit code 1 if refsim is one of them.
    """
    from benchmarks.peers import PEERS, measure, text
    from benchmarks.sim import Setup

    _starts_ranks()
    names = _chosen(peer, PEERS, "peer '{}' is not known", "; ")
    if rows % ranks or heads % ranks:
        raise UserError(f"--rows and --heads are multiples of the {ranks} ranks here, since not every library pads.")
    setup = Setup(ranks, rows, heads, head_dim, dtype, "storage", repetitions, seed)
    measured = measure(setup, names, say=say)
    passed = all(record.right for record in measured.records if record.name.startswith("refsim "))
    answer(measured, text, as_json=as_json, passed=passed)


@bench.command()
def shift(
    ranks: Ranks = 8,
    mib: Annotated[int, opt.size(help="MiB that every rank hands to the next one.")] = 16,
    rounds: Repetitions = 9,
    as_json: opt.AsJson = False,
) -> None:
    """Measure what moves tensors between ranks: a ring shift by either transport beside a plain copy."""
    from benchmarks.shift import measure, text

    _starts_ranks()
    record = measure(ranks, mib, rounds, say=say)
    answer(record, text, as_json=as_json, passed=record.shifted.right)


@bench.command()
def scale(
    ranks: Annotated[str, opt.scheme(help="Devices of ring attention, each a process.")] = "1,2,4,8,16,32,64,128",
    rows: Annotated[
        str, opt.size(help="Tokens of ring attention on 8 ranks; more than 16384 are measured once.")
    ] = "1024,2048,4096,8192,16384,32768,65536",
    mib: Annotated[str, opt.size(help="MiB of a ring shift's messages, on 8 ranks.")] = "0.0625,0.25,1,4,16,64",
    repetitions: Repetitions = 3,
    out: Annotated[Path | None, opt.output(help="Folder of scale.md and its plots.")] = None,
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure how cost grows: ring attention by ranks and by tokens, and a ring shift by the size of its message.

    Ten minutes; most of them for 65536 tokens. A size that cannot run is listed with its reason; exit code 1 if a
    result is wrong or nothing could run.
    """
    from benchmarks.scale import Sizes, markdown, measure, records, write

    _starts_ranks()
    tables.check_csv(csv)
    check_out(out)
    measured = measure(Sizes.parse(ranks, rows, mib, repetitions), say=say)
    tables.write_csv(records(measured), csv)
    if out is not None:
        write(measured, out)
    passed = bool(not measured.wrong and (measured.ranks or measured.rows or measured.messages))
    answer(measured, markdown, as_json=as_json, passed=passed)


@bench.command("full-size")
def full_size(
    context: typer.Context,
    model: Annotated[str, opt.published_model(help="A published model's name.")],
    mesh: opt.Mesh = "t3k",
    parallel: opt.Parallel = "cfg2_sp2_tp2",
    attention: opt.Attention = "ring",
    size: opt.Size = None,
    batch: Annotated[int, opt.size(min=1, help="2: both guidance branches.")] = 2,
    layers: Annotated[int | None, opt.size(min=1, help="Fewer layers than published.")] = None,
    weights: Annotated[Path | None, opt.weights(help="Folder to write the weights to and to keep.")] = None,
    seed: opt.Seed = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Medians of so many; one more before them is left out.")] = 1,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds without progress that end the run.")] = 1800.0,
    check: Annotated[bool, opt.check("--check", help="Beside diffusers on the same weights, in turn.")] = False,
    out: Annotated[Path | None, opt.output(help="Folder of full_size.json and full_size.md.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure one denoising step of a full-size model on this machine: seconds, and memory summed over ranks."""
    from benchmarks.full_size import FullSizeDocument, Step, markdown, measure, parse_size, write
    from refsim.models.registry import find, refuse_timing_only

    _starts_ranks()
    refuse_timing_only(find(model)[0])
    check_out(out)
    options = opt.run_options(context, dtype="bf16")
    step = Step(model, parse_size(size, model), batch, layers, seed, check, rounds)
    with ExitStack() as stack:
        folder = weights or Path(stack.enter_context(scratch.Folder("full-size")))
        record = measure(step, options, folder, say=say)
    typer.echo(output.document(FullSizeDocument(record)) if as_json else markdown([keys.as_json(record)]))
    if out is not None:
        write(record, out)
    if not (record.finite and record.ranks_agree):
        raise typer.Exit(1)
