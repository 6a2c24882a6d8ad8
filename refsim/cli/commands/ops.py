"""``refsim ops``: the operations of a transformer's blocks in TTNN, what they fuse, move and hold; no hardware."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from refsim.cli.choices import ATTENTION_OFFERED, CSV, MESH, MESHES_OFFERED


def ops(
    model: Annotated[str, typer.Argument(help="A published model's name, or a folder saved by diffusers.")],
    mesh: Annotated[str, typer.Option(help=MESH, autocompletion=MESHES_OFFERED)],
    parallel: Annotated[str, typer.Option(help="Factors, e.g. cfg2_sp2_tp2 or sp2@0_tp4@1.")] = "sp1",
    attention: Annotated[str, typer.Option(help="ring, ulysses or usp.", autocompletion=ATTENTION_OFFERED)] = "ring",
    ring: Annotated[int | None, typer.Option(help="Ring factor of usp.")] = None,
    ulysses: Annotated[int | None, typer.Option(help="Ulysses factor of usp.")] = None,
    size: Annotated[str | None, typer.Option(help="1024, 480p, 720p ...", show_default="the largest")] = None,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Prompts that a group computes at a time.")] = 1,
    weights_dtype: Annotated[
        str, typer.Option(help="Matrices of linear layers on a ttnn backend: bf16 or bfp8_b.")
    ] = "bf16",
    csv: Annotated[Path | None, typer.Option(help=CSV)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count a transformer's operations on a mesh, block by block: fused or not, bytes moved, cores, L1."""
    from refsim.base.options import RunOptions
    from refsim.files import output, tables
    from tt_impl.reports import ops as ttnn_ops

    tables.check_csv(csv)
    options = RunOptions.of(
        mesh=mesh,
        parallel=parallel,
        attention=attention,
        ring=ring,
        ulysses=ulysses,
        weights_dtype=weights_dtype,
        backend="ttnn-mock",
    )
    started = monotonic()
    found = ttnn_ops.count(model, options, size=size, batch=batch)
    parts = [*found.report["blocks"], found.report["around"]]
    rows = [{"block": part["kind"], "blocks": part["count"], **op} for part in parts for op in part["operations"]]
    tables.write_csv(rows, csv)
    if not as_json:
        typer.echo(ttnn_ops.text(found))
        return
    took = round(monotonic() - started, 1)
    typer.echo(output.document(ttnn_ops.Operations(mesh, parallel, found.ran, took, **found.report)))
