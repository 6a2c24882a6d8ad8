"""Programs as blocks of tt_dit have them that fuse less than ``program.py``: how published figures were run.

apart   a rotary embedding is four operations (x cos + rotate(x) sin), a gate two (blocks/attention.py,
        blocks/transformer_block.py: Flux.1, Qwen-Image, Motif)
whole   besides, every device of tp holds all features of its rows: a norm gathers no statistics, and norms, gates
        and residuals are as wide as the model (transformer_mochi.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from refsim.models.figures import Blocks
from refsim.timing.read.recorder import Op


def as_blocks(programs: list[Op], blocks: Blocks, tp: int = 1) -> list[Op]:
    """Return the programs of a forward as ``blocks`` have them; ``tp``: devices that share the features."""
    if blocks == "fused":
        return programs
    if blocks == "whole":
        programs = list(_whole(programs, tp))
    return list(_apart(programs))


def _apart(programs: list[Op]) -> Iterator[Op]:
    for op in programs:
        x = op.output
        if op.name == "rotary_embedding":
            table = replace(op, name="mul", inputs=(x, (1, 1, *x[-2:])))
            yield from (table, replace(op, name="rotate", inputs=(x,)), table, replace(op, name="add", inputs=(x, x)))
        elif op.name == "addcmul":
            yield from (replace(op, name="mul", inputs=op.inputs[:2]), replace(op, name="add", inputs=(x, x)))
        else:
            yield op


def _whole(programs: list[Op], tp: int) -> Iterator[Op]:
    shared = {op.output[-1] for op in programs if op.name == "layer_norm"}
    for i, op in enumerate(programs):
        before = programs[i - 1] if i else op
        if op.name == "statistics" or (op.kind == "collective" and before.name == "statistics"):
            continue
        distributed = op.kind == "norm" and before.kind == "collective" and programs[i - 2].name == "statistics"
        if distributed or (op.kind == "elementwise" and len(op.output) == 3 and op.output[-1] in shared):
            yield replace(op, inputs=tuple(_wider(s, tp) for s in op.inputs), output=_wider(op.output, tp))
        else:
            yield op


def _wider(shape: tuple[int, ...], tp: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * tp)
