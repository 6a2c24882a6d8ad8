"""``refsim report``: tables and plots of predictions, tables of ttnn's allocator, and one page of all results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refsim.cli.answer import say
from refsim.files.output import check_folder

report = typer.Typer(no_args_is_help=True)
Tables = Annotated[Path, typer.Option("--out", help="Folder for the tables and plots.")]
Match = Annotated[str, typer.Option("-k", help="Only systems whose name has all these words.")]


@report.callback()
def _report() -> None:
    """Write predictions (perf, ranking), what ttnn's allocator says (memory, sdpa), or all results as a page (html)."""


@report.command()
def perf(
    out: Tables = Path("reports/perf"),
    ttnn_memory: Annotated[Path, typer.Option(help="Folder of what `refsim memory --json` printed.")] = Path(
        "reports/ttnn_memory"
    ),
) -> None:
    """Write tables and plots: expected, desired and published time per system, model and configuration."""
    from refsim.timing.report.perf_report import write

    check_folder(out, "--out")
    write(out, ttnn_memory, progress=say)


@report.command()
def ranking(out: Tables = Path("reports/perf")) -> None:
    """Write whether published pipelines and wirings are predicted in the right order, and how far apart."""
    from refsim.timing.report.perf_report import write_ranking

    check_folder(out, "--out")
    write_ranking(out, progress=say)


@report.command()
def memory(out: Tables = Path("reports/memory"), match: Match = "") -> None:
    """Allocate the published systems, pipelines whole, on mock meshes: DRAM, L1, what to swap, what does not fit."""
    from tt_impl.reports.residency import TABLE

    check_folder(out, "--out")
    TABLE.write(out, match=match, progress=say)


@report.command()
def sdpa(out: Tables = Path("reports/memory"), match: Match = "") -> None:
    """Try chunk sizes of ring attention on mock meshes: which fit a core's L1, which ttnn refuses."""
    from tt_impl.reports.chunks import TABLE

    check_folder(out, "--out")
    TABLE.write(out, match=match, progress=say)


@report.command()
def html(
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("out/html"),
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Folder with results of other commands; may be given several times.", show_default="out"),
    ] = None,
    db: Annotated[
        Path | None, typer.Option("--db", help="A file of `refsim history`, whose trends are shown, too.")
    ] = None,
    only_records: Annotated[
        bool, typer.Option("--only-records", help="Compute nothing: no predictions of published systems, no ring.")
    ] = False,
) -> None:
    """Write one page that opens from a file: parity, faults, predictions, memory, speed, trends, a ring's timeline."""
    from parity.report.page.write import write

    check_folder(out, "--out")
    typer.echo(write(out, results, history=db, only_records=only_records, progress=say))
