"""``refsim plan``: every parallel configuration of a mesh by predicted time, and what cannot run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from refsim.base.config import ATTENTIONS
from refsim.base.errors import UserError
from refsim.base.mesh import get_mesh
from refsim.cli import options as opt
from refsim.files import output, tables

if TYPE_CHECKING:
    from refsim.base.padded import Padded
    from refsim.timing.predict.plan import Candidate


def plan(
    model: opt.PublishedModel,
    mesh: opt.Mesh,
    size: opt.Size = None,
    height: opt.Height = None,
    width: opt.Width = None,
    frames: opt.Frames = None,
    today: Annotated[bool, opt.scheme("--today", help="Only what tt_dit can be asked to run today.")] = False,
    attention: Annotated[str, opt.scheme(help="Only ring, ulysses or usp; or all.")] = "all",
    topology: Annotated[str | None, opt.scheme(help="Only Ring or only Linear.", show_default="both")] = None,
    links: opt.Links = None,
    calibration: opt.Calibration = None,
    top: Annotated[int, opt.output(help="How many ranks to show.", min=1)] = 10,
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
) -> None:
    """Rank every parallel configuration, topology and number of links by predicted time, and say what cannot run."""
    from refsim.timing.cost.fitted import read_calibration
    from refsim.timing.predict.plan import Only, limits
    from refsim.timing.predict.plan import plan as make
    from refsim.timing.report.documents import Plan

    if topology not in (None, "Ring", "Linear"):
        raise UserError(f"--topology is Ring, Linear or left out (both), not '{topology}'.")
    if attention not in ("all", *ATTENTIONS):
        raise UserError(f"--attention is all or one of {', '.join(ATTENTIONS)}, not '{attention}'.")
    tables.check_csv(csv)
    on = get_mesh(mesh)
    only = Only(None if attention == "all" else attention, topology, links, today)
    fitted = read_calibration(calibration) if calibration else None
    latent = opt.size_of(size, height, width, frames)
    candidates = make(model, on, size=latent, only=only, calibration=fitted, progress=_progress)
    _progress()
    if not candidates:
        raise UserError(f"no configuration lies on {mesh}.")
    runs = [c for c in candidates if not c.reason]
    refused = [c for c in candidates if c.reason]
    document = Plan.of(runs, refused, limits(on), top)
    tables.write_csv(document.plans, csv)
    if as_json:
        typer.echo(output.document(document))
        return
    _print_runs(runs, top)
    _print_refused(refused, limits(on), nothing_runs=not runs)


def _progress(configuration: str = "") -> None:
    """Say on a terminal which configuration is read, in place of the one before; none: wipe the line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{'reading ' if configuration else ''}{configuration}")
        sys.stderr.flush()


def _print_runs(runs: list[Candidate], top: int) -> None:
    if runs and runs[0].estimate.timing_only:
        typer.echo(f"{runs[0].estimate.title}: read from its public configuration, there is no numeric model.")
    typer.echo(
        f"{'rank':>4} {'configuration':36} {'wiring':9} {'s/step':>8} {'seconds':>8} {'range (80 %)':>17} {'GB':>5} "
        f"{'bound by':8} would help"
    )
    shown = 0
    for c in runs:
        if c.rank > top:
            break
        e = c.estimate
        saving, share = next(iter(c.savings.items()))
        rank = c.rank if c.rank != shown else ""
        shown = c.rank
        typer.echo(
            f"{rank:4} {c.text + ' fsdp' * e.memory.fsdp:36} {c.wiring!s:9} {e.seconds / e.steps:8.3f} "
            f"{e.seconds:8.2f} {e.range()!s:>17} {e.memory.total / 1e9:5.1f} {e.bound:8} {saving} -{share:.0%}"
        )
        if len(c.seconds) > 1:
            others = [f"{w} +{s / e.seconds - 1:.0%}" for w, s in sorted(c.seconds.items()) if w != c.wiring]
            typer.echo(f"     {'':36} {', '.join(others)}")
    padded: dict[Padded, list[str]] = {}
    for c in runs:
        for each in c.padded if c.rank <= top else ():
            padded.setdefault(each, []).append(c.text)
    if padded:
        typer.echo("\nPadded, which seconds and GB above have in them:")
    for each, texts in padded.items():
        typer.echo(f"  {each}: {', '.join(dict.fromkeys(texts))}")
    alike = [c for c in runs if c.best and not c.apart and 1 < c.rank <= top]
    if alike:
        ranks = ", ".join(str(c.rank) for c in alike)
        typer.echo(
            f"\nCannot be told apart from the first, whose seconds differ by less than the model may err: rank {ranks}."
        )


def _print_refused(refused: list[Candidate], limits: dict[str, str], *, nothing_runs: bool) -> None:
    reasons: dict[str, list[str]] = {}
    for c in refused:
        reasons.setdefault(c.reason, []).append(c.text)
    if reasons or limits:
        typer.echo("\nNothing can run:" if nothing_runs else "\nCannot run:")
    for reason, texts in reasons.items():
        typer.echo(f"  {', '.join(texts)}: {reason}")
    for what, why in limits.items():
        typer.echo(f"  {what}: {why}")
