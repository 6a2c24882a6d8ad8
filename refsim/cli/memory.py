"""``refsim memory``: DRAM and L1 of a whole transformer on a mesh, from ttnn's allocator; no hardware is needed."""

from __future__ import annotations

from time import monotonic
from typing import Annotated

import typer


def memory(
    model: Annotated[str, typer.Option(help="A published SD3.5, its family left out or not.")] = "large",
    mesh: Annotated[str, typer.Option(help="Mesh name; see `refsim meshes`.")] = "t3k",
    parallel: Annotated[str, typer.Option(help="Factors, such as cfg2_sp2_tp2.")] = "cfg2_sp2_tp2",
    pixels: Annotated[int, typer.Option(min=1, help="Side of the square image.")] = 1024,
    optable: Annotated[bool, typer.Option("--optable", help="Circular buffers and peak L1 too, op by op.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask ttnn's own allocator, from shapes alone, whether a whole transformer fits a mesh."""
    from refsim import output
    from refsim.options import RunOptions
    from tt_impl import memory as ttnn_memory

    options = RunOptions.of(mesh=mesh, parallel=parallel, backend="ttnn-mock")
    started = monotonic()
    found = ttnn_memory.plan(model, options, pixels=pixels, optable=optable)
    if not as_json:
        typer.echo(ttnn_memory.text(found, f"{model} {parallel}, {pixels} px"))
        return
    row = {"mesh": mesh, "parallel": parallel, "ran": found.ran, "wall_s": round(monotonic() - started, 1)}
    row |= found.report
    typer.echo(output.document(row | ({"resources": found.resources, "optable": found.optable} if optable else {})))
