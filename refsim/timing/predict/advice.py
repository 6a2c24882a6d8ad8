"""What every operation of a forward waits for, layer by layer, and what would help; and what would help the whole.

kernels at their roofline   what a kernel takes beyond its roof: the matrix engines or DRAM at their full rate
all communication hidden    where only the fabric works
no host gaps                from one program's end to the next one's start
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from refsim.files.trace_events import label
from refsim.timing.predict.estimate import Estimate
from refsim.timing.predict.replay import Ran, Span, Timeline

KERNELS = "kernels at their roofline"
COMMUNICATION = "all communication hidden"
GAPS = "no host gaps"
_LEAST = 0.1
"""An operation that could save a smaller share of its time is as good as at its roof."""
_COMPUTE = {
    "matmul": "larger blocks and subblocks",
    "sdpa": "chunk sizes that fill all cores; softmax and unpacking take the rest",
}
_BY_BOUND = {  # of kernels beyond their roof
    "compute": "fuse it with the op before it, or keep its tiles in L1",
    "dram": "fuse it with the op before it, or shard it in L1",
    "noc": "operands go from core to core: a 1-D grid or DRAM-sharded weights",
    "launch": "too short for a launch of its own: fuse it with its neighbour",
}


def savings(kernel_ns: float, roof_ns: float, exposed_ns: float, gap_ns: float) -> dict[str, float]:
    """Return the ns that each improvement, alone, would save; largest first."""
    by_cause = {KERNELS: max(kernel_ns - roof_ns, 0.0), COMMUNICATION: exposed_ns, GAPS: gap_ns}
    return dict(sorted(by_cause.items(), key=lambda item: -item[1]))


def of_whole(t: Timeline) -> dict[str, float]:
    """Return the share of a forward that each improvement alone would save; hidden is only as much as fits."""
    kinds = t.by_kind()
    kernels = sum(ns for kind, ns in kinds.items() if kind not in ("collective", "host"))
    exposed = min(t.exposed_ns, max(t.ns - t.ideal_fabric_ns, 0.0))
    by_cause = savings(kernels, t.ideal_compute_ns, exposed, kinds.get("host", 0.0))
    return {name: ns / t.ns for name, ns in by_cause.items()}


@dataclass
class Layer:
    """One operation of all layers that are alike.

    Attributes:
        layers: as ``block 0..36``, empty outside the blocks.
        inputs: shapes.
        count: in a forward.
        seconds: of the loop, with the gap before it.
        share: of the loop.
        bound: the largest of ``by_bound``, which is in seconds as ``would_save`` is.
        advice: one line.
    """

    layers: str
    op: str
    kind: str
    inputs: tuple[tuple[int, ...], ...]
    count: int
    seconds: float
    share: float
    bound: str
    by_bound: dict[str, float]
    would_save: dict[str, float]
    advice: str


def by_layer(estimate: Estimate) -> list[Layer]:
    """Return every operation of the denoising loop once for all layers that are alike, in the order they run in."""
    alike: dict[tuple[Any, ...], list[Ran]] = defaultdict(list)
    for ran in estimate.timeline.programs:
        alike[_main(ran).op.module, ran.name, ran.inputs].append(ran)
    rows = [_row(rans, estimate) for rans in alike.values()]
    order = list(dict.fromkeys(row.layers for row in rows))
    return sorted(rows, key=lambda row: order.index(row.layers))


def _main(ran: Ran) -> Span:
    """Return the span that a program is named after: what it computes, or else its transfer."""
    on_device = [s for s in ran.spans if s.kind != "host"]
    return next((s for s in on_device if s.resource != "fabric"), on_device[0])


def _row(rans: list[Ran], estimate: Estimate) -> Layer:
    by_bound: dict[str, float] = defaultdict(float)
    kernels = 0.0
    roof = 0.0
    for ran in rans:
        on_device = [s for s in ran.spans if s.resource != "fabric"]
        for s in on_device:
            by_bound[s.bound] += s.end - s.start
        busy = sum(s.end - s.start for s in on_device if s.kind != "host")
        by_bound["fabric"] += ran.ns - busy
        kernels = kernels + busy
        roof = roof + sum(s.roof_ns for s in on_device)
    ns = sum(by_bound.values())
    first = rans[0]
    would_save = savings(kernels, roof, by_bound["fabric"], by_bound["host"])
    times = estimate.forwards_per_step * estimate.steps / 1e9
    return Layer(
        layers=_layers([_main(ran).stage for ran in rans]),
        op=label("", _main(first).op.module, first.name),
        kind=first.kind,
        inputs=first.inputs,
        count=len(rans),
        seconds=ns * times,
        share=ns / estimate.timeline.ns,
        bound=max(by_bound, key=by_bound.__getitem__),
        by_bound={name: value * times for name, value in by_bound.items() if value > 0},
        would_save={name: value * times for name, value in would_save.items()},
        advice=_advice(first, by_bound, would_save, roof / kernels if kernels else 0.0),
    )


def _advice(ran: Ran, by_bound: dict[str, float], would_save: dict[str, float], reached: float) -> str:
    """Return one line: what saves most of an operation's time; ``reached``: its kernels' share of their roof."""
    saving, ns = next(iter(would_save.items()))
    if ns < _LEAST * sum(by_bound.values()):
        return f"near its roof ({reached:.0%}): less work a device"
    if saving == GAPS:
        return "shorter than the gap before it: fuse it with its neighbour"
    if saving == COMMUNICATION:
        other = "a smaller ring" if "ring_attention" in ran.name else "a matmul beside it"
        return f"the links are waited for: more links, or {other}"
    bound = max((name for name in by_bound if name in _BY_BOUND), key=by_bound.__getitem__)
    known = _COMPUTE if bound == "compute" else {}
    return f"{known.get(ran.kind, _BY_BOUND[bound])} ({reached:.0%} of its roof)"


def _layers(stages: list[str]) -> str:
    """Return the names of layers in short: ``block 0..36, block 38``."""
    named = [re.fullmatch(r"(.*?)(\d+)", stage) for stage in dict.fromkeys(filter(None, stages))]
    numbers = enumerate((m[1], int(m[2])) for m in named if m)
    runs = [[at for _, at in run] for _, run in groupby(numbers, key=lambda item: (item[1][0], item[1][1] - item[0]))]
    return ", ".join(f"{run[0][0]}{run[0][1]}" + (f"..{run[-1][1]}" if len(run) > 1 else "") for run in runs)


def text(rows: list[Layer]) -> str:
    """Return the table as the command line prints it, a heading for layers that are alike."""
    lines = ["", f"{'count':>5} {'seconds':>9} {'share':>6} {'bound':8} {'operation':48} {'inputs':28} would help"]
    for layers, of_layers in groupby(rows, key=lambda row: row.layers):
        of_layer = list(of_layers)
        lines.append(f"{layers or 'outside the blocks'}: {sum(row.seconds for row in of_layer):.3f} s")
        for row in of_layer:
            shown = row.inputs[: 2 if row.kind in ("matmul", "sdpa") else 1]
            shapes = " ".join("x".join(map(str, shape)) for shape in shown)
            saved = next(iter(row.would_save.values()))
            lines.append(
                f"{row.count:5} {row.seconds:9.4f} {row.share:6.1%} {row.bound:8} {row.op:48} "
                f"{shapes:28} -{saved:.4f} s: {row.advice}"
            )
    return "\n".join(lines)
