"""``refsim explain``: which device holds what under a parallel configuration, the rings, buffers and bytes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refsim.cli import options as opt
from refsim.files import output

if TYPE_CHECKING:
    from rich.console import Console

    from refsim.cli.commands.explain_layout import DeviceShare, Layout


def explain(
    context: typer.Context,
    mesh: opt.Mesh,
    model: Annotated[
        str | None,
        opt.published_model(help="A published model's name, or a folder saved by diffusers; for shapes and bytes."),
    ] = None,
    parallel: opt.Parallel = "sp1",
    attention: opt.Attention = "ring",
    ring: opt.Ring = None,
    ulysses: opt.Ulysses = None,
    ring_order: opt.RingOrder = "step",
    size: opt.Size = None,
    dtype: opt.Dtype = "bf16",
    svg: Annotated[Path | None, opt.output(help="Write the picture here.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show which device holds what, the rings and their order, buffers and bytes; no arithmetic is run."""
    from refsim.cli.commands.explain_layout import layout_of
    from refsim.models.registry import find, latent

    if svg is not None:
        output.check_target(svg, "--svg")
    options = opt.run_options(context)
    known = None
    shape = None
    if model is not None:
        _, known = find(model)
        _, shape = latent(known, size)
    layout = layout_of(options, known, shape)
    if svg is not None:
        from refsim.cli.commands.explain_svg import svg as draw

        output.write(svg, draw(layout).encode(), "--svg")
    if as_json:
        typer.echo(output.document(layout))
        return
    _print(layout)
    if svg is not None:
        typer.echo(f"picture -> {svg}")


def _print(layout: Layout) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False, soft_wrap=True)
    rows, columns = layout.shape
    grid = Table(box=box.ROUNDED, show_header=False, show_lines=True, title_justify="left")
    grid.title = f"{layout.mesh} ({rows}x{columns}), {layout.parallel}, {layout.attention}; rows are axis 0"
    for line in range(rows):
        grid.add_row(*(_cell(device, layout.attention) for device in layout.devices if device.coord[0] == line))
    console.print(grid, soft_wrap=False)
    for group in layout.groups:
        where = f"axis {group['axis']}, {group['topology']}, {group['links']} link{'s' * (group['links'] != 1)}"
        console.print(f"{group['name']:8}{where}: ranks {' '.join(map(str, group['ranks']))}")
    for member in layout.ring:
        line = " | ".join(f"{'+'.join(map(str, step['shards']))}{_from(step)}" for step in member["steps"])
        console.print(f"ring member {member['member']} (rank {member['rank']}) attends to shards {line}")
    if layout.model:
        _print_model(layout, console)


def _cell(device: DeviceShare, attention: str) -> str:
    lines = [f"rank {device.rank}", f"cfg {device.cfg} sp {device.sp} tp {device.tp}"]
    if attention == "usp":
        lines.append(f"r {device.ring} u {device.ulysses}")
    return "\n".join([*lines, *device.ranges])


def _from(step: dict[str, Any]) -> str:
    return f" (from rank {' and '.join(map(str, step['from']))})" if step["from"] else ""


def _print_model(layout: Layout, console: Console) -> None:
    share = layout.per_device
    console.print(
        f"{layout.model}, latent {'x'.join(map(str, layout.latent))}, {layout.dtype}: weights "
        f"{share['weights_bytes'] / 1e9:.2f} GB, buffers {share['buffer_bytes'] / 1e6:.1f} MB a device"
    )
    for padded in layout.padded:
        console.print(f"pads {padded}")
    for buffer in layout.buffers:
        slots = f"{buffer['slots']} x " if buffer["slots"] > 1 else ""
        console.print(f"buffer {buffer['name']}: {slots}{buffer['bytes'] / 1e6:.2f} MB")
    for row in layout.collectives:
        console.print(
            f"{row['count']:5} x {row['name']} of {row['members']} on axis {row['axis']} ({row['topology']}): "
            f"{row['steps']} step{'s' * (row['steps'] > 1)} of {row['bytes_per_step'] / 1e6:.3f} MB"
        )
