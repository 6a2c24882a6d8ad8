"""``refsim explain``: which device holds what under a parallel configuration, the rings, buffers and bytes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refsim.cli.choices import ATTENTION_OFFERED, DTYPE_OFFERED, MESH, MESHES_OFFERED, RING_ORDER_OFFERED

if TYPE_CHECKING:
    from refsim.cli.commands.explain_layout import Held, Layout


def explain(
    mesh: Annotated[str, typer.Option(help=MESH, autocompletion=MESHES_OFFERED)],
    model: Annotated[
        str | None,
        typer.Argument(help="A published model's name, or a folder saved by diffusers; for shapes and bytes."),
    ] = None,
    parallel: Annotated[str, typer.Option(help="Factors, e.g. cfg2_sp2_tp2 or sp2@0_tp4@1.")] = "sp1",
    attention: Annotated[str, typer.Option(help="ring, ulysses or usp.", autocompletion=ATTENTION_OFFERED)] = "ring",
    ring: Annotated[int | None, typer.Option(help="Ring factor of usp.")] = None,
    ulysses: Annotated[int | None, typer.Option(help="Ulysses factor of usp.")] = None,
    ring_order: Annotated[
        str, typer.Option(help="Overlap: gather, step or block.", autocompletion=RING_ORDER_OFFERED)
    ] = "step",
    size: Annotated[str | None, typer.Option(help="1024, 480p, 720p ...", show_default="the largest")] = None,
    dtype: Annotated[str, typer.Option(help="Storage: fp32 or bf16.", autocompletion=DTYPE_OFFERED)] = "bf16",
    svg: Annotated[Path | None, typer.Option(help="Write the picture here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which device holds what, the rings and their order, buffers and bytes; no arithmetic is run."""
    from refsim.base.options import RunOptions
    from refsim.cli.commands.explain_layout import layout
    from refsim.files import output
    from refsim.models.registry import find
    from refsim.timing.predict.estimate import latent

    if svg is not None:
        output.check_target(svg, "--svg")
    options = RunOptions.of(
        mesh=mesh,
        parallel=parallel,
        attention=attention,
        ring=ring,
        ulysses=ulysses,
        ring_order=ring_order,
        dtype=dtype,
    )
    known, shape = None, None
    if model is not None:
        known = find(model)[1]
        shape = latent(known, size)[1]
    found = layout(options, known, shape)
    if svg is not None:
        from refsim.cli.commands.explain_svg import svg as draw

        output.write(svg, draw(found).encode(), "--svg")
    if as_json:
        typer.echo(output.document(found))
        return
    _print(found)
    if svg is not None:
        typer.echo(f"picture -> {svg}")


def _print(found: Layout) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    rows, columns = found.shape
    grid = Table(box=box.ROUNDED, show_header=False, show_lines=True, title_justify="left")
    grid.title = f"{found.mesh} ({rows}x{columns}), {found.parallel}, {found.attention}; rows are axis 0"
    for line in range(rows):
        grid.add_row(*(_cell(d, found.attention) for d in found.devices if d.coord[0] == line))
    console.print(grid)
    for group in found.groups:
        where = f"axis {group['axis']}, {group['topology']}, {group['links']} link{'s' * (group['links'] != 1)}"
        console.print(f"{group['name']:8}{where}: ranks {' '.join(map(str, group['ranks']))}", soft_wrap=True)
    for member in found.ring:
        steps = [f"{'+'.join(map(str, s['shards']))}{_from(s)}" for s in member["steps"]]
        line = " | ".join(steps)
        console.print(
            f"ring member {member['member']} (rank {member['rank']}) attends to shards {line}", soft_wrap=True
        )
    if found.model:
        _print_model(found, console)


def _cell(device: Held, attention: str) -> str:
    lines = [f"rank {device.rank}", f"cfg {device.cfg} sp {device.sp} tp {device.tp}"]
    if attention == "usp":
        lines.append(f"r {device.ring} u {device.ulysses}")
    lines += [
        f"{label} {held[0]}..{held[1] - 1}"
        for held, label in ((device.token_rows, "rows"), (device.heads, "heads"))
        if held is not None
    ]
    return "\n".join(lines)


def _from(step: dict[str, Any]) -> str:
    return f" (from rank {' and '.join(map(str, step['from']))})" if step["from"] else ""


def _print_model(found: Layout, console: Any) -> None:
    held = found.per_device
    console.print(
        f"{found.model}, latent {'x'.join(map(str, found.latent))}, {found.dtype}: weights "
        f"{held['weights_bytes'] / 1e9:.2f} GB, buffers {held['buffer_bytes'] / 1e6:.1f} MB a device",
        soft_wrap=True,
    )
    for buffer in found.buffers:
        slots = f"{buffer['slots']} x " if buffer["slots"] > 1 else ""
        console.print(f"buffer {buffer['name']}: {slots}{buffer['bytes'] / 1e6:.2f} MB")
    for row in found.collectives:
        console.print(
            f"{row['count']:5} x {row['name']} of {row['members']} on axis {row['axis']} ({row['topology']}): "
            f"{row['steps']} step{'s' * (row['steps'] > 1)} of {row['bytes_per_step'] / 1e6:.3f} MB",
            soft_wrap=True,
        )
