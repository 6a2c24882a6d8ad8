"""The operations of a transformer, block by block, from one forward on shapes alone; what each moves and holds.

Counterpart of nothing in ``refsim``: only a device runs operations. The model is built with one block of every kind
its configuration has, run once on zeros, and every operation is told apart by the block that called it. Weights and
values are not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import ttnn

from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from refsim.files.keys import as_json
from refsim.models.registry import find, latent, spec_of
from refsim.models.spec import Published, resolve
from tt_impl.blocks.stack import holder_of_blocks
from tt_impl.parallel.context import Context
from tt_impl.pipelines.transformer import submeshes
from tt_impl.reports.ops import Block, Operation, Totals
from tt_impl.trace.intercept import Invocation, intercepted
from tt_impl.trace.optable import OpTable

AROUND = "around"
"""The stage of everything that is not in a block: embeddings before the first, norm and projection after the last."""


class StagedOps:
    """A handler for :func:`tt_impl.trace.intercept.intercepted` with one of its own for every stage of a program.

    Args:
        make: gives such a handler.

    Attributes:
        of: these handlers, by stage.
    """

    def __init__(self, make: Callable[[], Any] = OpTable) -> None:
        self.of: dict[str, Any] = {}
        self.stage = AROUND
        self._make = make

    def __call__(self, call: Invocation) -> Any:
        if self.stage not in self.of:
            self.of[self.stage] = self._make()
        return self.of[self.stage](call)

    def staged(self, block: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """``block``, whose operations are noted under ``stage``."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self.stage = stage
            try:
                return block(*args, **kwargs)
            finally:
                self.stage = AROUND

        return run


def program(
    device: ttnn.MeshDevice, options: RunOptions, *, model: str, size: str | None = None, batch: int = 1
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Report ``blocks``: per kind its ``kind``, how many of them the ``count`` of the model is, ``operations`` (rows of
    :class:`OpTable` in order) and ``totals``; ``around`` is one such entry for what is outside of blocks.

    Args:
        model: a published transformer's name, or a folder with its config.json.
        size: one of its sizes (``1024``, ``480p``), or pixels; the largest one if left out.
        batch: prompts that a cfg group computes at a time.
    """
    name, described = find(model)
    size, of_latent = latent(described, size)
    ops = StagedOps()
    kinds, shape = forward(device, options, described, of_latent, batch, ops)
    report = {"model": name, "size": size, "batch": batch, "shape": shape}
    report["blocks"] = [entry(kind, count, ops.of[kind].rows) for kind, count in kinds.items()]
    report["around"] = entry(AROUND, 1, ops.of[AROUND].rows)
    return report, {}


def forward(
    device: ttnn.MeshDevice,
    options: RunOptions,
    described: Published,
    size: tuple[int, ...],
    batch: int,
    ops: StagedOps,
    *,
    again: bool = False,
) -> tuple[dict[str, int], list[int]]:
    """Run a transformer with one block of every kind once, on the first cfg group, under ``ops``.

    Args:
        size: of its latent.
        again: the run that is noted is the second one: what is made once and kept is no part of it.

    Returns:
        how many blocks of each kind the whole model has, and the shape of the group's mesh.
    """
    spec = spec_of(described)
    kinds = spec.block_counts(described.config)
    config = spec.with_block_counts(described.config, dict.fromkeys(kinds, 1))
    ctx = Context(submeshes(device, options)[0], options)
    transformer = resolve(spec.ttnn)(ShapeWeights(torch.bfloat16), ctx, spec.config_class.from_dict(config))
    shapes = spec.input_shapes(described.but(config=config), size, batch)
    inputs = {key: torch.zeros(shape) for key, shape in shapes.items()}
    if again:
        transformer(**inputs)
    holder = holder_of_blocks(transformer)
    holder._blocks = [ops.staged(block, kind) for kind, block in zip(kinds, holder._blocks, strict=True)]
    with intercepted(ops):
        transformer(**inputs)
    return kinds, list(ctx.shape)


def entry(kind: str, count: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One part of the report: its rows and their sums."""
    return as_json(Block(kind, count, [Operation(**row) for row in rows], totals(rows)))


def totals(rows: list[dict[str, Any]]) -> Totals:
    """Sum over ``rows``."""

    def summed(key: str) -> int:
        return sum(row[key] * row["count"] for row in rows)

    l1, l1_op = max(((row["cb_bytes"] + row["l1_bytes"], row["op"]) for row in rows), default=(0, ""))
    return Totals(
        operations=sum(row["count"] for row in rows),
        fused=sum(row["count"] for row in rows if row["fuses"]),
        collectives=sum(row["count"] for row in rows if row["link_bytes"]),
        read_bytes=summed("read_bytes"),
        written_bytes=summed("written_bytes"),
        link_bytes=summed("link_bytes"),
        cores=max((row["cores"] for row in rows), default=0),
        l1_bytes=l1,
        l1_op=l1_op,
    )
