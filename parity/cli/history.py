"""``refsim history``: results by commit in one file, what they were over time, where a case became worse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from parity.cli.options import Expr
from refsim.cli import options as opt
from refsim.cli.answer import answer
from refsim.files import output, tables

app = typer.Typer(no_args_is_help=True, add_completion=False)
Db = Annotated[Path, typer.Option("--db", help="The file of the history.")]
DB = Path("history.sqlite")
_DIGITS = {"value": 15, "limit": 15, "measured_s": 4, "predicted_s": 4, "memory_gb": 4}


@app.command()
def add(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results of one commit, such as out/parity.")],
    db: Db = DB,
    commit: Annotated[
        str | None, typer.Option(help="Commit of the results.", show_default="what `refsim parity run` noted")
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="Of the commit, such as 2026-01-31.", show_default="noted, or the run's start")
    ] = None,
) -> None:
    """Put the results of a folder in under their commit; what is there of the same commit is replaced."""
    from parity.report import history

    done = history.add(folder, db, commit=commit, date=date)
    typer.echo(f"{done.records} records of {done.commit} ({done.date}) in {db}, {done.replaced} of them replaced")


@app.command()
def show(
    expr: Expr = None,
    metric: Annotated[str, typer.Option(help="PCC, or a metric such as rel_rmse.")] = "PCC",
    db: Db = DB,
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show metric and limit, measured and predicted seconds and memory over commits, and what became worse."""
    from parity.report import history

    tables.check_csv(csv)
    rows = history.rows(history.read(db, expr), metric)
    tables.write_csv(rows, csv)
    if as_json:
        typer.echo(output.document(history.History(metric, rows)))
    else:
        _print(rows, metric)


@app.command()
def bisect(expr: Expr = None, db: Db = DB, as_json: opt.AsJson = False) -> None:
    """Name the first commit at which a case became worse beyond noise, or failed; exit code 1 if there is one."""
    from parity.report import history

    entries = history.read(db, expr, ("parity",))
    turns = history.bisect(entries)
    lines = []
    for turn in turns:
        after = f"after {turn.before}, compared with {turn.since}" if turn.before else "the first in the history"
        lines.append(f"{turn.case} ({turn.setting}): {turn.commit} ({turn.date}), {after}: {'; '.join(turn.worse_by)}")
    if not turns:
        cases, commits = ({getattr(entry, what) for entry in entries} for what in ("series", "commit"))
        lines.append(f"{len(cases)} cases at {len(commits)} commits: none became worse beyond noise")
    answer(history.Turns(turns), lambda _: "\n".join(lines), as_json=as_json, passed=not turns)


def _print(rows: Sequence[dict[str, Any]], metric: str) -> None:
    """Print a table for every case, without the columns in which it has nothing."""
    import pandas as pd

    frame = pd.DataFrame([{name: _cell(name, value) for name, value in row.items()} for row in rows])
    for (kind, case, setting), part in frame.groupby(["kind", "case", "setting"], sort=False):
        shown = part.drop(columns=["kind", "case", "setting"])
        shown = shown.loc[:, (shown != "").any()].replace("", "-").rename(columns={"value": metric})
        typer.echo(f"{case} ({', '.join(filter(None, [kind, setting]))})\n{shown.to_string(index=False)}\n")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "commit":
        return re.sub(r"^([0-9a-f]{12})[0-9a-f]{28}", r"\1", value)
    return f"{value:.{_DIGITS[name]}g}" if name in _DIGITS else str(value)
