"""Turn the ops read off a model into the programs a device runs, with TTNN's fused ops and tt_dit's layers.

Reading follows torch, op by op; on the device
    - an activation right after a matmul is part of it (``fused_activation``);
    - a gate (mul, add) is one ternary op (``addcmul``); a bias that follows a reduce-scatter is the matmul's, on one
      device of the row;
    - scale and shift after a norm are the norm's own weight and bias, also where its statistics are gathered: then it
      is two programs, statistics first, and the statistics travel as whole tiles (layers/normalization.py);
    - linears of one row that share their input are one linear, cut apart after it (the modulations of a block);
    - queries are not joined with the prompt's before ring joint attention, which takes both;
    - time embeddings' and position tables' few elements are made on the host once.
And what torch has as views, the device moves: heads are cut out of QKV and joined after attention.
"""

from __future__ import annotations

import math
from dataclasses import replace

from refsim.timing.read.reading import Op

_ACTIVATIONS = {"gelu", "silu", "relu", "gelu_", "silu_"}


def programs(ops: list[Op]) -> list[Op]:
    """Return the ops in order, fused as described at the top of this file."""
    found: list[Op] = []
    joined: list[Op] = []
    rings: set[int] = set()
    for op in ops:
        last = found[-1] if found else None
        small = math.prod(op.output or (2,)) <= 32768 and op.kind in ("elementwise", "layout")
        if op.dtype.startswith("int") or small or (op.kind == "layout" and _is_weights_or_nothing(op)):
            continue
        if op.name in ("mul", "add") and any(math.prod(s) == s[-1] for s in op.inputs) and _normed(found, op):
            continue
        if op.name == "add" and last is not None and last.name == "reduce_scatter" and len(op.inputs[0]) == 1:
            continue
        if last is not None and last.output == op.output and op.kind == "elementwise":
            if last.kind == "matmul" and op.name in _ACTIVATIONS:
                continue
            if op.name == "add" and last.name == "mul":
                found[-1] = replace(last, name="addcmul", inputs=(*last.inputs, op.output))
                continue
        if _gathers_statistics(op) and last is not None and last.kind == "norm":
            tile = replace(op, inputs=((*op.inputs[0][:-1], 32 * op.inputs[0][-1]),), bytes=32 * op.bytes)
            over_both = [p.name for p in found[-3:-1]] == ["statistics", "all_gather"]
            found[-1:] = [tile, last] if over_both else [replace(last, name="statistics"), tile, last]
            continue
        if op.kind == "matmul" and last is not None and last.kind == "matmul" and _one_row(last, op):
            n = last.inputs[1][0] + op.inputs[1][0]
            found[-1] = replace(last, inputs=(last.inputs[0], (n, last.inputs[1][1])), output=(*last.output[:-1], n))
            joined += [replace(op, kind="layout", name="slice", inputs=(op.output,), bytes=0)] * (1 + (not joined))
            continue
        found += joined
        joined = []
        starts = op.kind == "sdpa" if op.ring < 0 else op.ring not in rings
        if starts:
            rings.add(op.ring)
            if last is not None and last.kind == "layout" and last.name == "cat":
                found.pop()
            found.append(replace(op, kind="layout", name="create_heads", output=op.inputs[0], bytes=0))
        if last is not None and last.kind == "sdpa" and op.kind != "sdpa":
            found.append(replace(last, kind="layout", name="concat_heads", inputs=(last.output,), ring=-1, step=-1))
        found.append(op if op.dtype != "fp32" or op.kind == "collective" else replace(op, dtype="bf16"))
    return found


def _normed(found: list[Op], op: Op) -> bool:
    """Whether the last thing computed is a norm of what ``op`` scales or shifts."""
    last = found[-1] if found else None
    return last is not None and last.kind == "norm" and last.output == op.output


def _gathers_statistics(op: Op) -> bool:
    """Whether the gather is that of a distributed norm: one or two numbers a row, or three a group of channels."""
    return op.kind == "collective" and op.name == "all_gather" and op.inputs[0][-1] <= 3


def _one_row(a: Op, b: Op) -> bool:
    same = a.inputs[0] == b.inputs[0] and a.inputs[1][1] == b.inputs[1][1]
    return same and len(a.inputs[0]) == 2 and a.inputs[0][0] <= 32


def _is_weights_or_nothing(op: Op) -> bool:
    """Whether the op only puts together a table of weights, or joins something with nothing."""
    return len(op.output) == 2 or any(0 in shape for shape in op.inputs)
