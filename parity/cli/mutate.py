"""``refsim faults mutate``: change the source at random and see that a parity case notices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from parity.cli.options import Expr
from refsim.base.errors import UserError
from refsim.cli import options as opt
from refsim.cli.answer import check_out, say

Files = Annotated[list[str], typer.Option(help="Files, folders or patterns, such as refsim/parallel; may be repeated.")]
Budget = Annotated[str, typer.Option(help="Time of the mutations, such as 90s, 20m or 2h; recording comes before.")]
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str, option: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``20m`` or ``2h``; ``UserError`` for anything else and for 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise UserError(f"{option} '{text}' is no time; write it as 90s, 20m or 2h.")
    return float(match[1]) * _UNITS[match[2]]


def backend_of(files: list[str]) -> str:
    """Return the backend whose cases run the files: ``ttnn-mock`` for ``tt_impl``, else ``cpu``."""
    packages = {file.partition("/")[0] for file in files}
    if "parity" in packages or len(packages) > 1:
        raise UserError("--files are of refsim or of tt_impl, whose cases differ; name one of them at a time.")
    return "ttnn-mock" if packages == {"tt_impl"} else "cpu"


def mutate(
    files: Files,
    budget: Budget = "20m",
    count: Annotated[int, typer.Option(min=1, help="How many mutations at most.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw of mutations.")] = 0,
    expr: Expr = None,
    least: Annotated[
        float, typer.Option(min=0, max=100, help="Percent to be killed of those not proved equivalent; fewer fail.")
    ] = 100.0,
    out: Annotated[Path | None, opt.output(help="Folder for mutation.json, mutation.md, and the map of lines.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Change a copy of the source in small ways, run the cases that execute each change; exit code 1 if too many pass.

    A change counts as killed if a case judges its answer wrong, or if it raises or hangs where the unchanged source
    does not. Of those tried --least percent must be killed: few that were tried say little; none tried is exit code 1.

    Cases of the smoke suite that execute the changed line run until one fails, quick ones unlike those before them
    first, for a minute or, if that is more, four times its part of --budget; those that are left then count as passed.
    Which those are is recorded first, and kept in the folder of --out until a source changes.
    """
    from parity.mutation import campaign
    from parity.mutation import score as report
    from parity.mutation.measure import Asked
    from parity.mutation.tree import files_under

    chosen = files_under(files)
    limits = campaign.Limits.of(count, seconds(budget, "--budget"))
    check_out(out)
    asked = Asked(chosen, expr=expr, backend=backend_of(chosen))
    done = campaign.run(
        campaign.ParityCases(asked, out and out / "lines.json"),
        asked,
        seed,
        limits,
        (
            lambda case: say(f"recorded {case.case} {case.verdict} {case.seconds:.1f} s"),
            lambda index, tried: say(report.line(index, tried)),
        ),
    )
    if out is not None:
        report.write(done, out)
    typer.echo(report.as_json(done) if as_json else report.text(done), nl=not as_json)
    score = report.summary(done)["score"]
    if score is None or score < least:
        raise typer.Exit(1)
