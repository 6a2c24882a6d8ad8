"""``refsim parity list | run | why | compare | floors ...``; what is heavy is imported when a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from parity.cli.coverage import coverage
from parity.cli.options import Backend, Expr, Part, Suite
from refsim.base.errors import UserError
from refsim.cli import options as opt
from refsim.cli.answer import answer, check_out, say
from refsim.cli.renamed import old_command
from refsim.files import output, tables

if TYPE_CHECKING:
    from parity.cases import Case
    from parity.measure.records import Record, SuiteRun
    from refsim.base.options import Numerics

CONTRIBUTORS = "For contributors"
app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command("list")
def list_cases(
    suite: Suite = "smoke", expr: Expr = None, backend: Backend = "cpu", part: Part = None, as_json: opt.AsJson = False
) -> None:
    """List the ids of the cases, in the order they run."""
    from refsim.cli.progress import PATIENCE_S, Spinner

    with Spinner(f"collecting the cases of suite {suite}", after_s=PATIENCE_S):
        from parity.cases.selection import select

        cases = select(suite, expr, backend, part)
    if as_json:
        typer.echo(output.document([case.describe() for case in cases]))
        return
    for case in cases:
        typer.echo(case.id)
    say(f"{len(cases)} cases")


@app.command()
def run(
    suite: Suite = "smoke",
    expr: Expr = None,
    backend: Backend = "cpu",
    numerics: opt.Numerics = "off",
    seed: opt.Seed = 0,
    seeds: Annotated[int, opt.weights(min=1, help="How many seeds, from --seed on.")] = 1,
    part: Part = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Cases at a time, backend cpu. [default: the cores, at most 4]"),
    ] = None,
    out: Annotated[Path, opt.output(help="Folder for results.json, junit.xml and parity.md.")] = Path("out/parity"),
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run a suite, judge every case, print the table; exit code 1 if a case fails."""
    from parity.report import ci
    from parity.run.suite import Asked, Selected, run_suite
    from refsim.runtime import launch

    asked = Asked(suite, expr, backend, seed, seeds, part, cast("Numerics", numerics))
    selected = Selected.of(asked, workers_asked=jobs)  # a mistake should not have to wait for torch
    tables.check_csv(csv)
    if selected.workers == 1:
        launch.warm_up()
    with _Lines() as lines:
        done = run_suite(selected, out, lines)
    tables.write_csv(done.records, csv)
    ci.tell(done)
    if as_json:
        from parity.report.results import results_json

        sys.stdout.write(results_json(done))
    else:
        _print(done, out)
    if done.exit_code:
        raise typer.Exit(done.exit_code)


@app.command()
def why(
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="Id of one case; `refsim parity list` prints them.")],
    backend: Backend = "cpu",
    numerics: opt.Numerics = "off",
    seed: opt.Seed = 0,
    out: Annotated[Path | None, opt.output(help="Folder for results.json, junit.xml and parity.md.")] = None,
    trace: opt.Trace = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run one case with all taps and the trace on, and say where it is wrong and what that looks like."""
    from parity.report.results import explained
    from parity.run.single import run_one
    from refsim.runtime import launch

    launch.warm_up()
    done = run_one(case_id, backend, seed, out, trace, cast("Numerics", numerics))
    record = done.records[0]
    text = "\n".join(filter(None, [f"{record.verdict}: {record.id}: {record.reason}", explained(record)]))
    answer(record, lambda _: text, as_json=as_json, passed=not done.exit_code)


old_command(app, "parity explain", "parity why", why)
Before = Annotated[Path, typer.Argument(metavar="A", help="Folder or results.json of the run before.")]
After = Annotated[Path, typer.Argument(metavar="B", help="Of the run after.")]
Changes = Annotated[Path | None, opt.output("--csv", help="Write all changes of metrics here, too.")]


@app.command()
def compare(
    first: Before,
    second: After,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Say what got worse, by how much, noise or not, in place of bits.")
    ] = False,
    csv: Changes = None,
    as_json: opt.AsJson = False,
) -> None:
    """Say which cases of two runs differ in verdict or bits, or in metrics; exit code 1 if one does, or got worse."""
    from parity.report import compare as bits
    from parity.report import diff as changes

    if csv is not None and not metrics:
        raise UserError("--csv has the changes of metrics; say --metrics as well.")
    result: Any
    if metrics:
        result = changes.diff(bits.read(first), bits.read(second))
        tables.write_csv([dict(vars(row)) for row in result.rows], csv, (*changes.COLUMNS, "worse"))
        text = changes.markdown(result)
    else:
        result = bits.compare(bits.read(first), bits.read(second))
        text = bits.as_text(result)
    answer(result, lambda _: text, as_json=as_json, passed=not result.exit_code)


@app.command()
def diff(before: Before, after: After, csv: Changes = None, as_json: opt.AsJson = False) -> None:
    """Compare as `compare --metrics` does: what got worse between two runs, by how much, noise or not."""
    compare(before, after, metrics=True, csv=csv, as_json=as_json)


@app.command(rich_help_panel=CONTRIBUTORS)
def floors(
    seeds: Annotated[int, opt.weights(min=1, help="Seeds of weights and inputs.")] = 16, as_json: opt.AsJson = False
) -> None:
    """Measure the oracle's own rounding and store it; the thresholds follow from it."""
    from parity.run import calibrate as calibration

    measured = calibration.calibrate(seeds, say)
    calibration.write(measured)
    lines = [
        f"{kind}: " + ", ".join(f"{metric} {value:.2g}" for metric, value in floor.items())
        for kind, floor in measured.floors.items()
    ]
    answer(measured, lambda _: "\n".join(lines), as_json=as_json)


old_command(app, "parity calibrate", "parity floors", floors)


@app.command(rich_help_panel=CONTRIBUTORS)
def sensitivity(
    suite: Suite = "smoke",
    expr: Expr = None,
    op: Annotated[list[str] | None, typer.Option(help="Only this op; may be given several times.")] = None,
    seed: opt.Seed = 0,
    out: Annotated[Path | None, opt.output(help="Folder for sensitivity.json and sensitivity.md.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find the smallest error of one op on one rank that each case sees; exit code 1 if one sees less than its goal."""
    from parity.cases.selection import select
    from parity.run import sensitivity as sens
    from parity.run.backends import check_environment

    cases = [case for case in select(suite, expr) if sens.measurable(case)]
    check_environment(cases)
    check_out(out)
    rows = sens.measure(cases, seed, tuple(op or sens.OPS), say)
    if out is not None:
        sens.write(rows, out)
    result = sens.Sensitivity.of(rows)
    passed = all(row.good for row in rows)
    answer(result, lambda _: sens.as_markdown(rows).rstrip("\n"), as_json=as_json, passed=passed)


app.command(rich_help_panel=CONTRIBUTORS)(coverage)


class _Lines:
    """One line per finished case on stderr, and on a terminal the one that is running below them."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._bar: Any = None

    def __enter__(self) -> _Lines:
        if self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, index: int, total: int, case: Case, record: Record | None) -> None:
        if self._bar is not None:
            done = index - (record is None)
            self._bar.update(self._task, total=total, completed=done, description=case.id)
        if record is not None:
            line = f"[{index:{len(str(total))}}/{total}] {record.verdict:7} {case.id} {record.wall_s:.1f} s"
            reason = f": {record.reason}" if record.reason else ""
            self._console.print(line + reason, markup=False, soft_wrap=True)


def _print(done: SuiteRun, out: Path) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from parity.report.results import explained, files, number

    colours = {"passed": "green", "failed": "bold red", "skipped": "yellow"}
    title = f"Parity, suite {done.suite}, backend {done.backend}, seed {done.seed}"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("case", overflow="fold")  # on a narrow terminal the id is folded, never a number
    table.add_column("verdict", no_wrap=True, min_width=7)
    for heading in ("RMSE/std", "1-PCC", "shard", "seam", "noise"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=8 if heading == "RMSE/std" else 7)
    table.add_column("s", justify="right", no_wrap=True, min_width=4)
    for r in done.records:
        metrics = (r.metrics.get(m) for m in _COLUMNS)
        table.add_row(
            r.id,
            r.verdict,
            *map(number, metrics),
            number(r.noise.get("rel_rmse")),
            f"{r.wall_s:.1f}",
            style=None if r.verdict == "passed" else colours[r.verdict],
        )
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    console.print(table)
    for r in done.records:
        if r.verdict != "passed":
            console.print(f"{r.verdict}: {r.id}: {r.reason}", markup=False, soft_wrap=True)
            if why := explained(r):
                console.print("  " + why.replace("\n", "\n  "), markup=False, soft_wrap=True)
    counts = ", ".join(f"{n} {verdict}" for verdict, n in done.counts.items())
    console.print(f"{counts} in {done.wall_s:.0f} s; {', '.join(files(done))} in {out}", markup=False, soft_wrap=True)


_COLUMNS = ("rel_rmse", "one_minus_pcc", "one_minus_pcc_shard", "one_minus_pcc_seam")
