"""``refsim faults``: put every known mistake into the program and see that the gate catches it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from parity.cli import AsJson, Expr
from parity.mutation.cli import mutate
from refsim.cli.renamed import renamed
from refsim.errors import UserError

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command()(mutate)
BACKENDS = ("cpu", "ttnn-mock")
Backend = Annotated[str, typer.Option("--backend", help="cpu (refsim's ranks), ttnn-mock (needs ttnn) or both.")]
Wing = Annotated[str | None, typer.Option("--wing", hidden=True)]
_OLD = {"refsim": "cpu", "tt_impl": "ttnn-mock"}
"""What ``--wing`` took."""


def _backend(wing: str | None, backend: str) -> str:
    """The backend that is asked for, by its option or by the option's old name."""
    return renamed("--wing", wing and _OLD.get(wing, wing), "--backend", backend)


def _chosen(backend: str, expr: str | None) -> dict[str, list[str]]:
    """Ids by backend."""
    from parity.faults import ref, ttnn
    from parity.selection import compile_expression

    if backend not in (*BACKENDS, "both"):
        raise UserError(f"--backend '{backend}' does not exist; choose one of {', '.join(BACKENDS)}, both.")
    known = {"cpu": ref.ref_faults(), "ttnn-mock": ttnn.ttnn_faults()}
    matches = compile_expression(expr) if expr else lambda text: True
    wanted = BACKENDS if backend == "both" else (backend,)
    found = {b: [i for i, f in known[b].items() if matches(f"{i} {f.family} {f.case.id}")] for b in wanted}
    if not any(found.values()):
        raise UserError(f"no fault matches -k '{expr}'; refsim faults list names them all.")
    return found


@app.command("run")
def run_faults(
    backend: Backend = "cpu",
    expr: Expr = None,
    out: Annotated[Path | None, typer.Option(help="Folder for faults.json and faults.md.")] = None,
    as_json: AsJson = False,
    wing: Wing = None,
) -> None:
    """Run clean cases and faults; exit code 1 if a fault survives or a clean case alarms."""
    from parity.faults import ref, report, ttnn

    chosen = _chosen(_backend(wing, backend), expr)
    runners: dict[str, Any] = {"cpu": ref.run, "ttnn-mock": ttnn.run}
    records = []
    for name, ids in chosen.items():
        if ids:
            records += runners[name](ids, lambda i, n, record: typer.echo(report.line(i, n, record), err=True))
    if out is not None:
        report.write(records, out)
    summary = report.summary(records)
    if as_json:
        typer.echo(report.as_json(records), nl=False)
    else:
        typer.echo(
            f"{summary['caught']} of {summary['faults']} faults caught, {len(summary['false_alarms'])} false alarms on "
            f"{summary['clean_cases']} clean cases; PCC >= 0.999 alone would have missed "
            f"{len(summary['missed_by_pcc_0.999'])}"
        )
        for survivor in summary["survived"]:
            typer.echo(f"survived: {survivor}")
    if not summary["good"]:
        raise typer.Exit(1)


@app.command("list")
def list_faults(backend: Backend = "both", expr: Expr = None, wing: Wing = None) -> None:
    """Name every fault, what is wrong and what mistake of a person leads to it."""
    from parity.faults.registry import FAULTS

    for ids in _chosen(_backend(wing, backend), expr).values():
        for name in ids:
            fault = FAULTS[name]
            stands = f" ({fault.mistake})" if fault.mistake else ""
            typer.echo(f"{fault.backend:9} {fault.family:14} {name}: {fault.sentence}{stands}")
