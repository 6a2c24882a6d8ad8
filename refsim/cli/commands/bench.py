"""``refsim bench``: benchmarks of this machine, and predictions beside measurements of others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from refsim.cli.choices import ATTENTION_OFFERED, CSV, MESH, MESHES_OFFERED

bench = typer.Typer(no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    """Measure on this machine, and show predictions beside measurements of others."""


@bench.command()
def draft(
    out: Annotated[Path, typer.Option(help="Folder for the two tables.")] = Path("reports/draft"),
    predicted_only: Annotated[bool, typer.Option("--predicted-only", help="Leave measured.md as it is.")] = False,
) -> None:
    """Show the DFlash drafter by context length: predicted beside the document's figures, and measured on CPU."""
    from benchmarks.draft import write
    from refsim.files.output import check_folder

    check_folder(out, "--out")
    write(out, lambda text: typer.echo(text, err=True), measured=not predicted_only)


@bench.command()
def accuracy(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Profiler files (CSV), or the one folder of the model's own data; none: published pipelines.",
            exists=True,
        ),
    ] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Of a folder: the calibration shapes one by one too.")
    ] = False,
    arch: Annotated[str | None, typer.Option(help="Of files that name no chip: wormhole_b0 or blackhole.")] = None,
    csv: Annotated[Path | None, typer.Option(help=CSV)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show errors of the timing model on profiler files: by class, by device, the worst, and what has no price.

    Without files: whether published pipelines and wirings are predicted in the right order, and how far apart.
    """
    from refsim.base.errors import UserError
    from refsim.files import output, tables

    tables.check_csv(csv)
    if not files:
        from refsim.timing.report import ranking

        def progress(text: str) -> None:
            typer.echo(text, err=True)

        known = ranking.runs(progress), ranking.wirings(), ranking.others(progress)
        document = ranking.document(*known)
        tables.write_csv(document.figures, csv)
        typer.echo(output.document(document) if as_json else ranking.markdown(*known))
        return

    if any(path.is_dir() for path in files):
        if len(files) > 1 or as_json or csv:
            raise UserError("a folder stands alone and has no --json and no --csv; give its CSV files instead.")
        from benchmarks.accuracy import print_tables

        print_tables(files[0], shapes=shapes)
        return
    from benchmarks import trace_accuracy

    found = trace_accuracy.compare(files, arch)
    profiled = trace_accuracy.document(found)
    tables.write_csv(profiled.devices, csv)
    typer.echo(output.document(profiled) if as_json else trace_accuracy.text(found))


@bench.command()
def hazards(
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of runs per case, at least.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what it costs to look for hazards: the same run with and without, in turn."""
    from benchmarks.hazards import HazardCosts, compare_all, text
    from refsim.files import output

    records = compare_all(pairs, say=lambda line: typer.echo(line, err=True))
    typer.echo(output.document(HazardCosts(records)) if as_json else "\n".join(map(text, records)))


@bench.command()
def values(
    mesh: Annotated[str, typer.Option(help=MESH, autocompletion=MESHES_OFFERED)] = "t3k",
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of measurements per operation.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what golden values cost: ttnn operations on a mock mesh with and without them, in turn."""
    from refsim.files import output
    from tt_impl.harness.reports.speed import HEADER, ValueCosts, measure, text

    records = measure(mesh, rounds)
    typer.echo(output.document(ValueCosts(mesh, records)) if as_json else "\n".join([HEADER, *map(text, records)]))


@bench.command()
def sim(
    ranks: Annotated[int, typer.Option(help="Devices of the mesh, each a process.")] = 8,
    rows: Annotated[int, typer.Option(help="Tokens.")] = 2048,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 8,
    head_dim: Annotated[int, typer.Option(help="Features of a head.")] = 64,
    dtype: Annotated[str, typer.Option(help="Storage: fp32 or bf16.")] = "bf16",
    math: Annotated[str, typer.Option(help="storage, reference or gemm, as of `refsim run`.")] = "storage",
    scheme: Annotated[list[str] | None, typer.Option(help="ring or ulysses; may be given twice.")] = None,
    repetitions: Annotated[int, typer.Option(help="Pairs of measurements that count.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the inputs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what it costs to play a mesh: attention on its ranks and in one process on the same cores, in turn."""
    from benchmarks.sim import SCHEMES, Setup, Simulations, machine, measure, text
    from refsim.base.errors import UserError
    from refsim.files import output
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("this benchmark starts its own ranks; run it without torchrun.")
    for name in scheme or []:
        if name not in SCHEMES:
            raise UserError(f"scheme '{name}' is not measured; choose one of {', '.join(SCHEMES)}.")
    setup = Setup(ranks, rows, heads, head_dim, dtype, math, repetitions, seed)
    for name in scheme or SCHEMES:
        setup.options(name)  # what does not fit is refused before the first second is spent
    records = [measure(setup, name, say=lambda line: typer.echo(line, err=True)) for name in scheme or SCHEMES]
    typer.echo(output.document(Simulations(machine(), records)) if as_json else "\n".join(map(text, records)))
    if not all(record.right and not record.hazards for record in records):
        raise typer.Exit(1)


@bench.command()
def peers(
    ranks: Annotated[int, typer.Option(help="Devices of the mesh, each a process.")] = 8,
    rows: Annotated[int, typer.Option(help="Tokens.")] = 2048,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 8,
    head_dim: Annotated[int, typer.Option(help="Features of a head.")] = 64,
    dtype: Annotated[str, typer.Option(help="Storage: fp32 or bf16.")] = "fp32",
    peer: Annotated[list[str] | None, typer.Option(help="One alone; may be given several times.")] = None,
    repetitions: Annotated[int, typer.Option(help="Rounds that count.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the inputs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure ring attention and Ulysses beside other libraries' on the same ranks, in turn; `nox -s bench`.

    A library that cannot run on CPU, or answers wrongly, is listed and counted; exit code 1 if refsim is one of them.
    """
    from benchmarks.peers import PEERS, measure, text
    from benchmarks.sim import Setup
    from refsim.base.errors import UserError
    from refsim.files import output
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("this benchmark starts its own ranks; run it without torchrun.")
    for name in peer or []:
        if name not in PEERS:
            raise UserError(f"peer '{name}' is not known; choose one of {'; '.join(PEERS)}.")
    if rows % ranks or heads % ranks:
        raise UserError(f"--rows and --heads are multiples of the {ranks} ranks here, since not every library pads.")
    setup = Setup(ranks, rows, heads, head_dim, dtype, "storage", repetitions, seed)
    found = measure(setup, peer or list(PEERS), say=lambda line: typer.echo(line, err=True))
    typer.echo(output.document(found) if as_json else text(found))
    if not all(record.right for record in found.records if record.name.startswith("refsim ")):
        raise typer.Exit(1)


@bench.command()
def shift(
    ranks: Annotated[int, typer.Option(help="Devices of the mesh, each a process.")] = 8,
    mib: Annotated[int, typer.Option(help="MiB that every rank hands to the next one.")] = 16,
    rounds: Annotated[int, typer.Option(help="Rounds of measurements that count.")] = 9,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what moves tensors between ranks: a ring shift by either transport beside a plain copy."""
    from benchmarks.shift import measure, text
    from refsim.base.errors import UserError
    from refsim.files import output
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("this benchmark starts its own ranks; run it without torchrun.")
    record = measure(ranks, mib, rounds, say=lambda line: typer.echo(line, err=True))
    typer.echo(output.document(record) if as_json else text(record))
    if not record.shifted.right:
        raise typer.Exit(1)


@bench.command()
def scale(
    ranks: Annotated[str, typer.Option(help="Devices of ring attention, each a process.")] = "1,2,4,8,16,32,64,128",
    rows: Annotated[
        str, typer.Option(help="Tokens of ring attention on 8 ranks; more than 16384 are measured once.")
    ] = "1024,2048,4096,8192,16384,32768,65536",
    mib: Annotated[str, typer.Option(help="MiB of a ring shift's messages, on 8 ranks.")] = "0.0625,0.25,1,4,16,64",
    repetitions: Annotated[int, typer.Option(min=1, help="Measurements of a size that count.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder of scale.md and its plots.")] = None,
    csv: Annotated[Path | None, typer.Option(help=CSV)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how cost grows: ring attention by ranks and by tokens, and a ring shift by the size of its message.

    Ten minutes; most of them for 65536 tokens. A size that cannot run is listed with its reason; exit code 1 if a
    result is wrong or nothing could run.
    """
    from benchmarks.scale import Sizes, markdown, measure, records, write
    from refsim.base.errors import UserError
    from refsim.files import output, tables
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("this benchmark starts its own ranks; run it without torchrun.")
    tables.check_csv(csv)
    if out is not None:
        output.check_folder(out, "--out")
    sizes = Sizes.parse(ranks, rows, mib, repetitions)
    found = measure(sizes, say=lambda line: typer.echo(line, err=True))
    tables.write_csv(records(found), csv)
    if out is not None:
        write(found, out)
    typer.echo(output.document(found) if as_json else markdown(found))
    if found.wrong or not (found.ranks or found.rows or found.messages):
        raise typer.Exit(1)


@bench.command("full-size")
def full_size(
    model: Annotated[str, typer.Argument(help="A published model's name; see `refsim time --help`.")],
    mesh: Annotated[str, typer.Option(help=MESH, autocompletion=MESHES_OFFERED)] = "t3k",
    parallel: Annotated[str, typer.Option(help="Factors, e.g. cfg2_sp2_tp2.")] = "cfg2_sp2_tp2",
    attention: Annotated[str, typer.Option(help="ring, ulysses or usp.", autocompletion=ATTENTION_OFFERED)] = "ring",
    size: Annotated[str, typer.Option(help="A named size of the model, or a latent such as 64x64.")] = "1024",
    batch: Annotated[int, typer.Option(min=1, help="2: both guidance branches.")] = 2,
    layers: Annotated[int | None, typer.Option(min=1, help="Fewer layers than published.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Folder to write the weights to and to keep.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    check: Annotated[bool, typer.Option("--check", help="Beside diffusers on the same weights, in turn.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Medians of so many; one more before them is left out.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds without progress that end the run.")] = 1800.0,
    out: Annotated[Path | None, typer.Option(help="Folder of full_size.json and full_size.md.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure one denoising step of a full-size model on this machine: seconds, and memory summed over ranks."""
    from benchmarks.full_size import FullSizeDocument, Step, markdown, measure, parse_size, write
    from refsim.base import scratch
    from refsim.base.errors import UserError
    from refsim.base.options import RunOptions
    from refsim.files import keys, output
    from refsim.models.registry import find, refuse_timing_only
    from refsim.runtime.launch import under_torchrun

    if under_torchrun():
        raise UserError("this benchmark starts its own ranks; run it without torchrun.")
    refuse_timing_only(find(model)[0])
    if out is not None:
        output.check_folder(out, "--out")
    options = RunOptions.of(mesh=mesh, parallel=parallel, attention=attention, dtype="bf16", timeout_s=timeout)
    step = Step(model, parse_size(size, model), batch, layers, seed, check, rounds)
    with ExitStack() as stack:
        folder = weights or Path(stack.enter_context(scratch.Folder("full-size")))
        record = measure(step, options, folder, say=lambda line: typer.echo(line, err=True))
    typer.echo(output.document(FullSizeDocument(record)) if as_json else markdown([keys.as_json(record)]))
    if out is not None:
        write(record, out)
    if not (record.finite and record.ranks_agree):
        raise typer.Exit(1)
