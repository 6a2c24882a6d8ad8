"""``refsim memory``: DRAM and L1 of a whole model on a mesh, from ttnn's allocator; no hardware is needed."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from refsim.cli.choices import CSV, MESH, MESHES_OFFERED


def memory(
    model: Annotated[str, typer.Option(help="A published transformer, its family left out or not.")] = "large",
    mesh: Annotated[str, typer.Option(help=MESH, autocompletion=MESHES_OFFERED)] = "t3k",
    parallel: Annotated[str, typer.Option(help="Factors, such as cfg2_sp2_tp2.")] = "cfg2_sp2_tp2",
    size: Annotated[
        str | None, typer.Option(help="1024, 480p, 720p ..., or a latent such as 64x64.", show_default="the largest")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Prompts of a cfg group at once.", show_default="a step's, over cfg")
    ] = None,
    optable: Annotated[bool, typer.Option("--optable", help="What every operation takes too, in the JSON.")] = False,
    csv: Annotated[Path | None, typer.Option(help=CSV)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask ttnn's own allocator, from shapes alone, whether a whole model fits a mesh, and what to shrink if not."""
    from refsim.base.options import RunOptions
    from refsim.files import output, tables
    from tt_impl.reports import memory as ttnn_memory

    tables.check_csv(csv)
    options = RunOptions.of(mesh=mesh, parallel=parallel, backend="ttnn-mock")
    started, known = monotonic(), ttnn_memory.find_published(model)
    shape = ttnn_memory.latent(known, size)
    shapes = ttnn_memory.input_shapes(known, shape, options, batch)
    found = ttnn_memory.plan(known, options, shapes, optable=optable)
    took = round(monotonic() - started, 1)
    row = ttnn_memory.Memory(known.name, mesh, parallel, shape, found.ran, took, **found.report)
    tables.write_csv([row], csv)
    if not as_json:
        title = f"{known.name} {parallel}, latent {'x'.join(map(str, shape))}"
        typer.echo(ttnn_memory.text(found, title))
        return
    if optable:
        row.resources, row.optable = found.resources, found.optable
    typer.echo(output.document(row))
