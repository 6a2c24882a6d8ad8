"""``refsim memory``: DRAM and L1 of a whole model on a mesh, from ttnn's allocator; no hardware is needed."""

from __future__ import annotations

from time import monotonic
from typing import Annotated

import typer

from refsim.base.errors import UserError
from refsim.cli import options as opt
from refsim.cli import renamed
from refsim.cli.answer import answer
from refsim.files import tables


def memory(
    context: typer.Context,
    model: Annotated[
        str | None, opt.published_model(help="A published model with a program in TTNN.", show_default=False)
    ] = None,
    mesh: opt.Mesh = "t3k",
    parallel: opt.Parallel = "cfg2_sp2_tp2",
    size: opt.Size = None,
    height: opt.Height = None,
    width: opt.Width = None,
    frames: opt.Frames = None,
    batch: Annotated[
        int | None, opt.size(min=1, help="Prompts of a cfg group at once.", show_default="a step's, over cfg")
    ] = None,
    optable: Annotated[bool, opt.output("--optable", help="What every operation takes too, in the JSON.")] = False,
    csv: opt.Csv = None,
    as_json: opt.AsJson = False,
    old_model: Annotated[str | None, typer.Option("--model", hidden=True)] = None,
) -> None:
    """Ask ttnn's own allocator, from shapes alone, whether a whole model fits a mesh, and what to shrink if not."""
    from refsim.models.registry import latent
    from tt_impl.reports import memory as ttnn_memory

    if old_model is not None:
        renamed.note("`refsim memory --model MODEL`", "`refsim memory MODEL`")
    if (name := model or old_model) is None:
        raise UserError("there is no model; give one, for example: refsim memory sd35-large.")
    tables.check_csv(csv)
    options = opt.run_options(context, backend="ttnn-mock")
    started = monotonic()
    known = ttnn_memory.find_published(name)
    _, shape = latent(known, opt.size_of(size, height, width, frames))
    shapes = ttnn_memory.input_shapes(known, shape, options, batch)
    outcome = ttnn_memory.plan(known, options, shapes, optable=optable)
    took = round(monotonic() - started, 1)
    row = ttnn_memory.Memory(known.name, mesh, parallel, shape, outcome.ran, took, **outcome.report)
    tables.write_csv([row], csv)
    if optable:
        row.resources = outcome.resources
        row.optable = outcome.optable
    title = f"{known.name} {parallel}, latent {'x'.join(map(str, shape))}"
    answer(row, lambda _: ttnn_memory.text(outcome, title), as_json=as_json)
