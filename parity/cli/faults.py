"""``refsim faults``: put every known mistake into the program and see that the gate catches it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from parity.cli.mutate import mutate
from parity.cli.options import Expr
from refsim.base.errors import UserError
from refsim.cli import options as opt
from refsim.cli.answer import answer, say
from refsim.files import tables
from refsim.files.keys import Key

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command()(mutate)
BACKENDS = ("cpu", "ttnn-mock")
Backend = Annotated[str, typer.Option("--backend", help="cpu (refsim's ranks), ttnn-mock (needs ttnn) or both.")]


@dataclass
class Recognised:
    """How many faults an explanation recognises."""

    seed: int
    judged: int
    places_right: int
    causes_right: int
    unseen: list[str]
    faults: Annotated[list[Any], Key(form=list[dict[str, Any]])]


def _chosen(backend: str, expr: str | None) -> dict[str, list[str]]:
    """Return the ids of the faults that match, by backend."""
    from parity.cases.selection import compile_expression
    from parity.faults.run import corpus

    if backend not in (*BACKENDS, "both"):
        raise UserError(f"--backend '{backend}' does not exist; choose one of {', '.join(BACKENDS)}, both.")
    matches = compile_expression(expr) if expr else lambda text: True
    wanted = BACKENDS if backend == "both" else (backend,)
    matching = {b: [i for i, f in corpus(b).items() if matches(f"{i} {f.family} {f.case.id}")] for b in wanted}
    if not any(matching.values()):
        raise UserError(f"no fault matches -k '{expr}'; refsim faults list names them all.")
    return matching


def _part(chosen: dict[str, list[str]], text: str) -> dict[str, list[str]]:
    """Return every Nth id of each backend from the Ith on, for ``I/N``: all N parts together are the whole."""
    from parity.cases.selection import part_of

    number, count = part_of(text)
    ids_of_part = {backend: ids[number - 1 :: count] for backend, ids in chosen.items()}
    if not any(ids_of_part.values()):
        raise UserError(f"part {text} has no fault; choose fewer parts.")
    return ids_of_part


@app.command("run")
def run_faults(
    backend: Backend = "cpu",
    expr: Expr = None,
    part: Annotated[str | None, typer.Option(metavar="I/N", help="Every Nth fault, from the Ith on.")] = None,
    out: Annotated[Path | None, opt.output(help="Folder for faults.json and faults.md.")] = None,
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run clean cases and faults; exit code 1 if a fault survives or a clean case alarms."""
    from parity.faults import summary as report
    from parity.faults.run import run

    tables.check_csv(csv)
    chosen = _chosen(backend, expr)
    if part is not None:
        chosen = _part(chosen, part)
    records = []
    for name, ids in chosen.items():
        if ids:
            records += run(name, ids, lambda i, n, record: say(report.line(i, n, record)))
    if out is not None:
        report.write(records, out)
    tables.write_csv(records, csv)
    summary = report.summary(records)
    if as_json:
        typer.echo(report.as_json(records), nl=False)
    else:
        typer.echo(
            f"{summary.caught} of {summary.faults} faults caught, {len(summary.false_alarms)} false alarms on "
            f"{summary.clean_cases} clean cases; PCC >= 0.999 alone would have missed "
            f"{len(summary.missed_by_pcc)}{f' (part {part} of the corpus)' if part else ''}"
        )
        for survivor in summary.survived:
            typer.echo(f"survived: {survivor}")
    if not summary.good:
        raise typer.Exit(1)


@app.command()
def signatures(
    out: Annotated[Path | None, typer.Option(help="File to write; the package's own if left out.")] = None,
    expr: Expr = None,
) -> None:
    """Run every fault of the reference on the cases its signature is made from, and store what failures look like."""
    from parity.explain.causes import SIGNATURES
    from parity.faults.recognition import signatures as recognition

    made = recognition.make(_chosen("cpu", expr)["cpu"], say)
    target = SIGNATURES if out is None else out
    recognition.write(made, target)
    typer.echo(f"{made['made']['runs']} signatures of {len(made['sentences'])} faults -> {target}")


@app.command()
def recognise(
    count: Annotated[int, typer.Option(min=1, help="Faults to draw.")] = 30,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    as_json: opt.AsJson = False,
) -> None:
    """Explain faults drawn by seed, on a mesh, a model and a seed that no signature is of; exit code 1 below the goal.

    The goal: the right place in all, the right fault among the first three in five of six.
    """
    from parity.faults.recognition import signatures as recognition

    judged, unseen = recognition.judge_draw(count, seed, say)
    places, right = (sum(getattr(one, name) for one in judged) for name in ("place_right", "cause_right"))
    text = f"{places} of {len(judged)} places right, {right} causes among the first three"
    if unseen:
        text += f"\ndrawn and not seen by the gate on the other mesh and model: {', '.join(unseen)}"
    result = Recognised(seed, len(judged), places, right, unseen, judged)
    passed = places == len(judged) and right * 6 >= len(judged) * 5
    answer(result, lambda _: text, as_json=as_json, passed=passed)


@app.command("list")
def list_faults(backend: Backend = "both", expr: Expr = None) -> None:
    """Name every fault, what is wrong and what mistake of a person leads to it."""
    from parity.faults.registry import FAULTS

    for ids in _chosen(backend, expr).values():
        for name in ids:
            fault = FAULTS[name]
            stands = f" ({fault.mistake})" if fault.mistake else ""
            typer.echo(f"{fault.backend:9} {fault.family:14} {name}: {fault.sentence}{stands}")
