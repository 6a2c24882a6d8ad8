"""A prediction as https://ui.perfetto.dev opens it: every device's compute, fabric and memory, and the host's launches.

    host        | launch of block 0 / attn.to_q+to_k+to_v: linear |
    device 0    compute   | block 0 / attn.to_q+to_k+to_v: linear |  | block 0 / attn: sdpa |
                fabric                              | block 0 / attn: ring_attention |---.
    device 1    fabric                              | block 0 / attn: ring_attention |<--'   to the neighbours
                memory    weights, buffers of the collectives, activations

One device stands for all in the prediction, so all devices' tracks are alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from refsim.base.mesh import Topology
from refsim.files.trace_events import HOST, TraceEvents, label
from refsim.runtime.group import parallel_groups
from refsim.timing.predict.estimate import Estimate, describe
from refsim.timing.predict.replay import Span, topology_of
from refsim.timing.read.reading import Reading
from refsim.timing.read.recorder import Op
from refsim.timing.read.tensors import BYTES

_TRACKS = {"compute": 0, "fabric": 1}


def write(estimate: Estimate, reading: Reading, path: Path) -> None:
    """Write the trace of one forward that an estimate was made of."""
    trace_events(estimate, reading).write(path)


def trace_events(estimate: Estimate, reading: Reading) -> TraceEvents:
    title = (
        f"{estimate.model} {estimate.size} on {estimate.mesh}, {describe(estimate.parallel)}: one forward, predicted"
    )
    trace = TraceEvents(title, calibration=estimate.row().calibration)
    trace.process(HOST, "host, predicted")
    spans = [s for s in estimate.timeline.spans if s.op is not None]
    for s in (s for s in spans if s.kind == "host"):
        trace.span(f"launch of {name(s)}", s.kind, (HOST, 0), s.start / 1000, s.end / 1000, {})
    levels = list(_levels(estimate, reading))
    for rank in range(estimate.mesh.num_devices):
        row, column = estimate.mesh.coord(rank)
        trace.process(rank, f"device {rank} ({row},{column}), predicted", _TRACKS)
        groups = parallel_groups(estimate.mesh, estimate.parallel, rank)
        for s in (s for s in spans if s.kind != "host"):
            place = rank, _TRACKS[s.resource]
            trace.span(name(s), s.kind, place, s.start / 1000, s.end / 1000, _arguments(s))
            if s.resource == "fabric":
                ranks = groups[s.op.group].ranks
                topology = topology_of(s.op, estimate.execution.topology)
                for other in neighbours(ranks, ranks.index(rank), topology):
                    trace.arrow(s.name, (place, s.start / 1000), ((other, place[1]), s.end / 1000))
        for at, value in levels:
            trace.level("memory", rank, at / 1000, value)
    return trace


def name(s: Span) -> str:
    """Return what a span's program is called; for a gap that of the program which follows."""
    return label(s.stage, s.op.module, s.op.name)


def neighbours(ranks: tuple[int, ...], index: int, topology: Topology) -> list[int]:
    """Return the ranks that a member of a group sends to."""
    if topology is Topology.RING:
        return [ranks[(index + way) % len(ranks)] for way in (1, -1)]
    return [ranks[at] for at in (index + 1, index - 1) if 0 <= at < len(ranks)]


def read_bytes(op: Op) -> int:
    """Return the bytes of what an op takes, or of what a collective is brought."""
    return op.bytes or round(sum(math.prod(shape) for shape in op.inputs) * BYTES.get(op.dtype, 0.0))


def _arguments(s: Span) -> dict[str, Any]:
    op = s.op
    arguments: dict[str, Any] = {"op": op.name, "shapes": op.inputs, "output": op.output, "dtype": op.dtype}
    arguments |= {"bytes": read_bytes(op), "bound": s.bound}
    if op.kind == "collective":
        arguments |= {"group": op.group, "axis": op.axis, "topology": op.topology and op.topology.value}
    return arguments


def _levels(estimate: Estimate, reading: Reading) -> Iterator[tuple[float, float]]:
    """Yield (ns, bytes of a device) where memory changes; ops that are no program of their own count with the next."""
    always = estimate.memory.weights + estimate.memory.buffers
    live = 0
    last = -1.0
    starts = {s.op.id: s.start for s in reversed(estimate.timeline.spans) if s.op is not None and s.op.id >= 0}
    final = max(starts, default=-1)
    for op in reading.ops:
        live = max(live, op.live)
        if op.id in starts:
            if op.id == final:
                live = max([live, *(o.live for o in reading.ops[op.id :])])
            if always + live != last:
                last = always + live
                yield starts[op.id], last
            live = 0
