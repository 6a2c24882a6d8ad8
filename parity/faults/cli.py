"""``refsim faults``: put every known mistake into the program and see that the gate catches it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from parity.cli import AsJson, Expr
from refsim.errors import UserError

app = typer.Typer(no_args_is_help=True, add_completion=False)
Wing = Annotated[str, typer.Option("--wing", help="refsim (CPU ranks), tt_impl (needs ttnn) or both.")]
WINGS = ("refsim", "tt_impl")


def _chosen(wing: str, expr: str | None) -> dict[str, list[str]]:
    """Ids by wing."""
    from parity.faults import ref
    from parity.faults import wing as device
    from parity.selection import compile_expression

    if wing not in (*WINGS, "both"):
        raise UserError(f"--wing '{wing}' does not exist; choose one of {', '.join(WINGS)}, both.")
    known = {"refsim": ref.ref_faults(), "tt_impl": device.wing_faults()}
    matches = compile_expression(expr) if expr else lambda text: True
    wanted = WINGS if wing == "both" else (wing,)
    found = {w: [i for i, f in known[w].items() if matches(f"{i} {f.family} {f.case.id}")] for w in wanted}
    if not any(found.values()):
        raise UserError(f"no fault matches -k '{expr}'; refsim faults list names them all.")
    return found


@app.command("run")
def run_faults(
    wing: Wing = "refsim",
    expr: Expr = None,
    out: Annotated[Path | None, typer.Option(help="Folder for faults.json and faults.md.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run clean cases and faults; exit code 1 if a fault survives or a clean case alarms."""
    from parity.faults import ref, report
    from parity.faults import wing as device

    chosen = _chosen(wing, expr)
    runners: dict[str, Any] = {"refsim": ref.run, "tt_impl": device.run}
    records = []
    for name, ids in chosen.items():
        if ids:
            records += runners[name](ids, lambda i, n, record: typer.echo(report.line(i, n, record), err=True))
    if out is not None:
        report.write(records, out)
    told = report.summary(records)
    if as_json:
        typer.echo(report.as_json(records), nl=False)
    else:
        typer.echo(
            f"{told['caught']} of {told['faults']} faults caught, {len(told['false_alarms'])} false alarms on "
            f"{told['clean_cases']} clean cases; PCC >= 0.999 alone would have missed "
            f"{len(told['missed_by_pcc_0.999'])}"
        )
        for survivor in told["survived"]:
            typer.echo(f"survived: {survivor}")
    if not told["good"]:
        raise typer.Exit(1)


@app.command("list")
def list_faults(wing: Wing = "both", expr: Expr = None) -> None:
    """Name every fault, what is wrong and what it stands for."""
    from parity.faults.registry import FAULTS

    for ids in _chosen(wing, expr).values():
        for name in ids:
            fault = FAULTS[name]
            stands = f" ({fault.stands_for})" if fault.stands_for else ""
            typer.echo(f"{fault.wing:8} {fault.family:14} {name}: {fault.sentence}{stands}")
