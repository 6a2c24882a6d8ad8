"""``refsim time``, ``refsim plan`` and ``refsim report perf``: predictions, no arithmetic is run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refsim.errors import UserError

if TYPE_CHECKING:
    from refsim.mesh import Topology
    from refsim.timing.estimate import Estimate
    from refsim.timing.reading import Reading


def time(
    model: Annotated[str, typer.Argument(help="A published model's name, or a folder saved by diffusers.")],
    mesh: Annotated[str, typer.Option(help="Mesh name; see `refsim meshes`.")],
    parallel: Annotated[str, typer.Option(help="Factors, e.g. cfg2_sp2_tp2 or sp2@0_tp4@1.")] = "sp1",
    attention: Annotated[str, typer.Option(help="ring, ulysses or usp.")] = "ring",
    ring: Annotated[int | None, typer.Option(help="Ring factor of usp.")] = None,
    ulysses: Annotated[int | None, typer.Option(help="Ulysses factor of usp.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.", min=1, max=1000)] = None,
    size: Annotated[str | None, typer.Option(help="1024, 480p, 720p ...")] = None,
    fsdp: Annotated[
        bool | None, typer.Option(help="Weights cut over sp too.", show_default="where they do not fit")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Linear: leave wrap-around links unused.", show_default="the mesh's")
    ] = None,
    links: Annotated[int | None, typer.Option(help="At most so many links per hop.", min=1)] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev here.")] = None,
    ttnn_memory: Annotated[
        Path | None, typer.Option(help="What `python -m tt_impl.memory --json` printed, to stand beside the account.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predicted seconds and memory of the denoising loop on a mesh, and what bounds them."""
    from refsim.config import parse_parallel
    from refsim.mesh import Topology, get_mesh
    from refsim.options import RunOptions
    from refsim.output import check_target
    from refsim.timing import estimate as estimates
    from refsim.timing.memory import check_ttnn, read_ttnn
    from refsim.timing.reading import read_published

    if trace is not None:
        check_target(trace, "--trace")
    if topology not in (None, "Linear"):
        raise UserError(f"--topology is Linear or left out (a Ring where the mesh has one), not '{topology}'.")
    on = get_mesh(mesh)
    config = parse_parallel(parallel, on, attention=attention, ring=ring, ulysses=ulysses)
    name, published = estimates.find(model)
    size, shape = estimates.latent(published, size)
    allocated = read_ttnn(ttnn_memory) if ttnn_memory else None
    if allocated:
        check_ttnn(allocated, published.config, on, config)
    if links is not None:
        on = replace(on, links=tuple(min(n, links) for n in on.links))
    wired = Topology.LINEAR if topology else None
    reading = read_published(published, shape, RunOptions(on, config, dtype="bf16"), batch=config.cfg)
    found = estimates.estimate(
        name, on, config, size=size, reading=reading, execution=estimates.Execution(steps, fsdp, topology=wired)
    )
    if trace is not None:
        from refsim.timing.perfetto import write

        write(found, trace)
    row = found.row() | {"critical_path": _critical(found, reading, wired)}
    if allocated:
        row["memory_gb"]["ttnn"] = {
            "ran": allocated.ran, "weights": allocated.weights / 1e9, "buffers": allocated.buffers / 1e9,
            "transient": allocated.transient / 1e9, "capacity": allocated.capacity / 1e9,
        }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(row, indent=2))
    else:
        _print_time(found, row)


def _critical(found: Estimate, reading: Reading, topology: Topology | None) -> dict[str, Any]:
    """Of the denoising loop, in seconds; without the gathering of weights."""
    from refsim.timing import schedule
    from refsim.timing.calibration import get_params
    from refsim.timing.critical import critical_path
    from refsim.timing.program import programs

    machine = schedule.machine(found.mesh, get_params(found.mesh.arch), topology=topology)
    path = critical_path(programs(reading.ops), reading.ops, machine)
    forwards = found.forwards * found.steps / 1e9
    return {
        "overlapped_seconds": path.ns * forwards,
        "dependencies_alone_seconds": path.chain_ns * forwards,
        "by_kind": {kind: ns * forwards for kind, ns in path.by_kind.items()},
    }


def _print_time(found: Estimate, row: dict[str, Any]) -> None:
    m, t, path = row["memory_gb"], found.timeline, row["critical_path"]
    stages = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in found.around.items())
    typer.echo(
        f"{found.model} {found.size} on {found.mesh}, {row['parallel']}: {found.seconds:.2f} s for {found.steps} steps "
        f"({row['seconds_per_step'] * 1000:.1f} ms each), predicted.\n"
        f"With {stages}: {found.total_seconds:.2f} s.\n"
        f"Roofline {found.desired_seconds:.2f} s; matrix engines {found.utilisation:.0%} busy at HiFi2; bound by "
        f"{found.bound}; communication exposed {row['exposed_communication']:.0%}, hidden {t.hidden_ns / t.ns:.0%}.\n"
        f"Critical path {path['overlapped_seconds']:.2f} s if every collective ran as soon as what it reads is there "
        f"(dependencies alone {path['dependencies_alone_seconds']:.2f} s): "
        + ", ".join(f"{kind} {s / path['overlapped_seconds']:.0%}" for kind, s in path["by_kind"].items())
        + ".\n"
        f"Memory per device: weights {m['weights']:.2f} + activations {m['activations']:.2f} + buffers "
        f"{m['buffers']:.2f} GB of {m['capacity']:.1f} GB{' (FSDP)' if m['fsdp'] else ''}"
        f"{'' if m['fits'] else ': DOES NOT FIT'}."
    )
    if "ttnn" in m:
        n = m["ttnn"]
        typer.echo(
            f"ttnn's allocator ({n['ran']}): weights {n['weights']:.2f} + transient {n['transient']:.2f} + buffers "
            f"{n['buffers']:.2f} GB of {n['capacity']:.1f} GB."
        )
    for title, key in (("op class", "by_kind"), ("bound by", "by_bound")):
        typer.echo(f"\n{title:12} {'seconds':>9} {'share':>6}")
        for name, seconds in sorted(row[key].items(), key=lambda item: -item[1]):
            typer.echo(f"{name:12} {seconds:9.3f} {seconds / found.seconds:6.1%}")


def plan(
    model: Annotated[str, typer.Argument(help="A published model's name, or a folder saved by diffusers.")],
    mesh: Annotated[str, typer.Option(help="Mesh name; see `refsim meshes`.")],
    size: Annotated[str | None, typer.Option(help="1024, 480p, 720p ...")] = None,
    today: Annotated[bool, typer.Option("--today", help="Only what tt_dit can be asked to run today.")] = False,
    attention: Annotated[str, typer.Option(help="Only ring, ulysses or usp; or all.")] = "all",
    topology: Annotated[str | None, typer.Option(help="Only Ring or only Linear.", show_default="both")] = None,
    links: Annotated[int | None, typer.Option(help="At most so many links per hop.", min=1)] = None,
    top: Annotated[int, typer.Option(help="How many ranks to show.", min=1)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every parallel configuration, topology and number of links by predicted time, and what cannot run."""
    from refsim.config import ATTENTIONS
    from refsim.mesh import get_mesh
    from refsim.timing.plan import limits
    from refsim.timing.plan import plan as make

    if topology not in (None, "Ring", "Linear"):
        raise UserError(f"--topology is Ring, Linear or left out (both), not '{topology}'.")
    if attention not in ("all", *ATTENTIONS):
        raise UserError(f"--attention is all or one of {', '.join(ATTENTIONS)}, not '{attention}'.")

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[Kreading {text}")
            sys.stderr.flush()

    on = get_mesh(mesh)
    only = None if attention == "all" else attention
    found = make(model, on, size=size, today=today, attention=only, topology=topology, links=links, progress=progress)
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    runs, refused = [c for c in found if not c.reason], [c for c in found if c.reason]
    if not found:
        raise UserError(f"no configuration lies on {mesh}.")
    if as_json:
        rows = [
            c.estimate.row()
            | {"rank": c.rank, "best_of_rank": c.best, "would_save": c.helps}
            | {"topology": c.wiring.topology, "links": c.wiring.links}
            | {"seconds_by_wiring": {str(w): s for w, s in c.seconds.items()}, "tt_dit_today": c.today or "runs"}
            for c in runs
            if c.rank <= top
        ]
        infeasible = [{"parallel": c.text, "reason": c.reason} for c in refused]
        infeasible += [{"wiring": what, "reason": why} for what, why in limits(on).items()]
        typer.echo(json.dumps({"plans": rows, "infeasible": infeasible}, indent=2))
        return
    typer.echo(
        f"{'rank':>4} {'configuration':36} {'wiring':9} {'s/step':>8} {'seconds':>8} {'GB':>5} {'bound by':8} "
        "would help"
    )
    shown = 0
    for c in runs:
        if c.rank > top:
            break
        e, (helps, saved) = c.estimate, next(iter(c.helps.items()))
        rank, shown = c.rank if c.rank != shown else "", c.rank
        typer.echo(
            f"{rank:4} {c.text + ' fsdp' * e.memory.fsdp:36} {c.wiring!s:9} {e.seconds / e.steps:8.3f} "
            f"{e.seconds:8.2f} {e.memory.total / 1e9:5.1f} {e.bound:8} {helps} -{saved:.0%}"
        )
        if len(c.seconds) > 1:
            others = [f"{w} +{s / e.seconds - 1:.0%}" for w, s in sorted(c.seconds.items()) if w != c.wiring]
            typer.echo(f"     {'':36} {', '.join(others)}")
    reasons: dict[str, list[str]] = {}
    for c in refused:
        reasons.setdefault(c.reason, []).append(c.text)
    if reasons or limits(on):
        typer.echo("\nCannot run:" if runs else "\nNothing can run:")
    for reason, texts in reasons.items():
        typer.echo(f"  {', '.join(texts)}: {reason}")
    for what, why in limits(on).items():
        typer.echo(f"  {what}: {why}")


report = typer.Typer(no_args_is_help=True)


@report.callback()
def _report() -> None:
    """Reports made from predictions."""


@report.command()
def perf(
    out: Annotated[Path, typer.Option(help="Folder for the tables and plots.")] = Path("reports/perf"),
    ttnn_memory: Annotated[Path, typer.Option(help="Folder of what `python -m tt_impl.memory --json` printed.")] = Path(
        "reports/ttnn_memory"
    ),
) -> None:
    """Tables and plots: expected, desired and published time per system, model and configuration."""
    from refsim.output import check_folder
    from refsim.timing.report import write

    check_folder(out, "--out")
    write(out, ttnn_memory, progress=lambda text: typer.echo(text, err=True))


def mount(app: typer.Typer) -> None:
    app.command()(time)
    app.command()(plan)
    app.add_typer(report, name="report", help="Tables and plots of predicted performance.")
