"""One model priced twice: as refsim reads it, and as its program in TTNN is built; by class, and where they part.

The same formulas price both. What differs is what runs: operations that a reader of torch does not see (layouts,
padding, time embeddings), fused ones and those that are not, block and chunk sizes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from refsim.files.keys import Key
from refsim.timing.cost.chips import TILE
from refsim.timing.cost.ops import tiles
from refsim.timing.predict.replay import Ran
from refsim.timing.read.op_names import op_name
from refsim.timing.read.reading import Shape

APART = 0.1
"""Classes that differ by more have their operations listed, until no more than this share of what differs is left."""
CLASSES = ("matmul", "sdpa", "norm", "elementwise", "layout", "collective")
"""A convolution is a matmul here; what runs inside a fused program is part of what that computes."""
_HOST = "host"
Group = dict[str, tuple[int, float]]
"""Count and ns by operation."""


@dataclass
class OpClass:
    """One class of operations.

    Attributes:
        ratio: None without the reference.
        ops: of a class that differs by more than 10 %: ``op``, and count in a forward and seconds of either, the
            largest difference first.
    """

    op_class: Annotated[str, Key("class")]
    reference_s: float
    ttnn_s: float
    ratio: float | None
    ops: list[dict[str, Any]]


def side_by_side(reference: Iterable[Ran], ttnn: Iterable[Ran], gap_ns: float, times: float) -> list[OpClass]:
    """Return a row a class.

    Args:
        gap_ns: from one program to the next, the class ``host``.
        times: how many forwards there are.
    """
    sides = [_grouped(reference), _grouped(ttnn)]
    for side in sides:
        counts = sum(count for ops in side.values() for count, _ in ops.values())
        side[_HOST] = {"gap": (counts, counts * gap_ns)}
    return [_row(kind, sides[0][kind], sides[1][kind], times / 1e9) for kind in (*CLASSES, _HOST)]


def _grouped(programs: Iterable[Ran]) -> dict[str, Group]:
    groups: dict[str, Group] = defaultdict(dict)
    for ran in programs:
        group = groups["matmul" if ran.kind == "conv" else ran.kind]
        label = described(ran)
        count, ns = group.get(label, (0, 0.0))
        group[label] = count + ran.count, ns + ran.count * ran.ns
    return groups


def _row(kind: str, reference: Group, ttnn: Group, seconds: float) -> OpClass:
    a, b = (sum(ns for _, ns in group.values()) * seconds for group in (reference, ttnn))
    apart = abs(b - a) > APART * a
    ops = list(_apart(reference, ttnn, seconds)) if apart and kind != _HOST else []
    return OpClass(kind, a, b, b / a if a else None, ops)


def _apart(reference: Group, ttnn: Group, seconds: float) -> Iterable[dict[str, Any]]:
    none = (0, 0.0)
    both = {op: (reference.get(op, none), ttnn.get(op, none)) for op in reference | ttnn}
    left = sum(abs(b - a) for (_, a), (_, b) in both.values())
    whole = left
    for op, ((count, a), (ttnn_count, b)) in sorted(both.items(), key=lambda item: -abs(item[1][1][1] - item[1][0][1])):
        if left <= APART * whole:
            return
        left -= abs(b - a)
        first = {"op": op, "reference_count": count, "reference_s": a * seconds}
        yield first | {"ttnn_count": ttnn_count, "ttnn_s": b * seconds}


def described(ran: Ran) -> str:
    """Name an operation so that both sides say the same where they do the same: sizes in whole tiles.

    A matmul is rows x K x N, its weight given as (N, K); what else there is goes by its largest input, rows x width.
    """
    known = op_name(ran.name)
    shapes = [_tiled(shape) for shape in ran.inputs]
    if ran.kind == "matmul" and len(shapes) > 1:
        return "x".join(map(str, (math.prod(shapes[0][:-1]), shapes[1][-1], shapes[1][-2])))
    if ran.kind == "sdpa":
        return f"attention, {shapes[0][-3]} heads of {shapes[0][-1]}"
    name = known.code if known and ran.kind == "collective" else ran.name.removesuffix("DeviceOperation")
    largest = max(shapes, key=math.prod, default=())
    return f"{name} {math.prod(largest[:-1])}x{largest[-1]}" if largest else name


def _tiled(shape: Shape) -> Shape:
    """Return the shape with its last two dims in whole tiles."""
    return (*shape[:-2], *(tiles(n) * TILE for n in shape[-2:]))
