"""Turn the ops read off a model into the programs a device runs, with TTNN's fused ops and tt_dit's layers.

Reading follows torch, op by op; on the device
    - an activation right after a matmul is part of it (``fused_activation``), one right before a product is the
      product's (``input_tensor_a_activations``);
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
from collections.abc import Callable
from dataclasses import replace

from refsim.timing.read.reading import Op

_ACTIVATIONS = {"gelu", "silu", "relu", "gelu_", "silu_"}


def programs(ops: list[Op]) -> list[Op]:
    """Return the ops in order, fused as described at the top of this file."""
    merged: list[Op] = []
    cut_apart: list[Op] = []
    rings: set[int] = set()
    for op in (op for op in ops if _runs(op)):
        together = (rule(merged, op) for rule in FUSED if merged)
        if made := next(filter(None, together), None):
            merged[-1:] = made
            if op.kind == "matmul":
                slices = 1 if cut_apart else 2
                cut_apart += [replace(op, kind="layout", name="slice", inputs=(op.output,), bytes=0)] * slices
            continue
        last = merged[-1] if merged else None
        merged += cut_apart
        cut_apart = []
        if op.kind == "sdpa" if op.ring < 0 else op.ring not in rings:  # attention starts
            rings.add(op.ring)
            if last is not None and last.kind == "layout" and last.name == "cat":
                merged.pop()
            merged.append(replace(op, kind="layout", name="create_heads", output=op.inputs[0], bytes=0))
        if last is not None and last.kind == "sdpa" and op.kind != "sdpa":
            merged.append(replace(last, kind="layout", name="concat_heads", inputs=(last.output,), ring=-1, step=-1))
        merged.append(op if op.dtype != "fp32" or op.kind == "collective" else replace(op, dtype="bf16"))
    return merged


def _runs(op: Op) -> bool:
    """Whether an op is a program by itself: few elements are made on the host once."""
    small = math.prod(op.output or (2,)) <= 32768 and op.kind in ("elementwise", "layout")
    return not (op.dtype.startswith("int") or small or (op.kind == "layout" and _is_weights_or_nothing(op)))


def _weight_of_norm(before: list[Op], op: Op) -> list[Op] | None:
    """Take scale and shift into the norm before."""
    last = before[-1]
    by_rows = op.name in ("mul", "add") and any(math.prod(s) == s[-1] for s in op.inputs)
    return [last] if by_rows and last.kind == "norm" and last.output == op.output else None


def _bias(before: list[Op], op: Op) -> list[Op] | None:
    """Take a bias behind a reduce-scatter into the matmul before that."""
    last = before[-1]
    follows = op.name == "add" and last.name == "reduce_scatter"
    return [last] if follows and any(len(shape) == 1 for shape in op.inputs) else None


def _activation(before: list[Op], op: Op) -> list[Op] | None:
    """Take an activation into the matmul before."""
    last = before[-1]
    follows = op.kind == "elementwise" and before[-1].output == op.output
    return [last] if follows and last.kind == "matmul" and op.name in _ACTIVATIONS else None


def _gated_product(before: list[Op], op: Op) -> list[Op] | None:
    """Take an activation into the product behind it."""
    last = before[-1]
    follows = last.kind == "elementwise" and last.name in _ACTIVATIONS and last.output == op.output
    return [op] if follows and op.name == "mul" else None


def _gate(before: list[Op], op: Op) -> list[Op] | None:
    """Make one of a product and a sum behind it."""
    last = before[-1]
    follows = op.kind == "elementwise" and before[-1].output == op.output
    if follows and op.name == "add" and last.name == "mul":
        return [replace(last, name="addcmul", inputs=(*last.inputs, op.output))]
    return None


def _statistics(before: list[Op], op: Op) -> list[Op] | None:
    """Split a norm whose statistics are gathered (one or two numbers a row, or three a group of channels) in two."""
    last = before[-1]
    if not (op.kind == "collective" and op.name == "all_gather" and op.inputs[0][-1] <= 3 and last.kind == "norm"):
        return None
    tile = replace(op, inputs=((*op.inputs[0][:-1], 32 * op.inputs[0][-1]),), bytes=32 * op.bytes)
    over_both = [p.name for p in before[-3:-1]] == ["statistics", "all_gather"]
    return [tile, last] if over_both else [replace(last, name="statistics"), tile, last]


def _one_linear(before: list[Op], op: Op) -> list[Op] | None:
    """Make one of two linears of the same few rows."""
    last = before[-1]
    if not (
        op.kind == "matmul" == last.kind and last.inputs[0] == op.inputs[0] and last.inputs[1][1] == op.inputs[1][1]
    ):
        return None
    if len(op.inputs[0]) != 2 or op.inputs[0][0] > 32:
        return None
    n = last.inputs[1][0] + op.inputs[1][0]
    return [replace(last, inputs=(last.inputs[0], (n, last.inputs[1][1])), output=(*last.output[:-1], n))]


FUSED: tuple[Callable[[list[Op], Op], list[Op] | None], ...] = (
    _weight_of_norm, _bias, _activation, _gated_product, _gate, _statistics, _one_linear,
)  # fmt: skip
"""Each says what the last program and the op behind it are together, None if they stay two; the first that does."""


def _is_weights_or_nothing(op: Op) -> bool:
    """Whether the op only puts together a table of weights, or joins something with nothing."""
    return len(op.output) == 2 or any(0 in shape for shape in op.inputs)
