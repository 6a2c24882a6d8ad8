"""``refsim ops``: the operations of a transformer's blocks in TTNN, what they fuse, move and hold; no hardware."""

from __future__ import annotations

from time import monotonic
from typing import Annotated

import typer

from refsim.cli import options as opt
from refsim.cli.answer import answer
from refsim.files import tables


def ops(
    context: typer.Context,
    model: opt.PublishedModel,
    mesh: opt.Mesh,
    parallel: opt.Parallel = "sp1",
    attention: opt.Attention = "ring",
    ring: opt.Ring = None,
    ulysses: opt.Ulysses = None,
    size: opt.Size = None,
    height: opt.Height = None,
    width: opt.Width = None,
    frames: opt.Frames = None,
    batch: Annotated[int, opt.size(min=1, max=64, help="Prompts that a group computes at a time.")] = 1,
    weights_dtype: opt.WeightsDtype = "bf16",
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
) -> None:
    """Count a transformer's operations on a mesh, block by block: fused or not, bytes moved, cores, L1."""
    from tt_impl.reports import ops as ttnn_ops

    tables.check_csv(csv)
    options = opt.run_options(context, backend="ttnn-mock")
    started = monotonic()
    outcome = ttnn_ops.count(model, options, size=opt.size_of(size, height, width, frames), batch=batch)
    took = round(monotonic() - started, 1)
    parts = [*outcome.report["blocks"], outcome.report["around"]]
    rows = [{"block": part["kind"], "blocks": part["count"], **op} for part in parts for op in part["operations"]]
    tables.write_csv(rows, csv)
    operations = ttnn_ops.Operations(mesh, parallel, outcome.ran, took, **outcome.report)
    answer(operations, lambda _: ttnn_ops.text(outcome), as_json=as_json)
