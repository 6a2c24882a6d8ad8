"""A program as Chrome's trace events: calls on the host, device operations on each device, levels of memory.

    host       | linear       | gelu  | all_gather          |     calls, in order, as long as what they put on devices
    device 0   | Matmul  ||Un.|| Unary|| AllGather          |     predicted durations
    memory       ___/'''''\\___/''''''\\____________________      DRAM and L1 of a bank, after every call

No moment of it was measured: programs follow each other as :mod:`tt_impl.harness.reports.schedule` lays them out.
"""

from __future__ import annotations

from refsim.files.trace_events import HOST, TraceEvents
from tt_impl.harness.reports.cost import SOURCE
from tt_impl.harness.reports.prediction import Prediction
from tt_impl.harness.reports.schedule import schedule
from tt_impl.harness.watch.meter import Meter
from tt_impl.harness.watch.session import Session

Spans = dict[int, tuple[float, float]]
"""By call, when what it puts on devices begins and ends, in ns."""


def trace(session: Session, predictions: list[Prediction]) -> str:
    """Return the JSON text that https://ui.perfetto.dev and chrome://tracing open."""
    meter = session.meter
    events = TraceEvents("a TTNN program: times predicted", source=SOURCE)
    events.process(HOST, "host: calls in order (times predicted)")
    for device in sorted({d for about in meter.meshes.values() for d in about["devices"]}):
        events.process(device, f"device {device} (predicted, not measured)")
    spans: Spans = {}
    starts = schedule(session.log.events, predictions, meter.meshes).starts
    for p, start in zip(predictions, starts, strict=True):
        spans[p.launch.event] = spans.get(p.launch.event, (start, start))[0], start + p.ns
        for device in meter.meshes[p.launch.mesh]["devices"]:
            _program(events, p, device, start)
    _host(events, meter, spans)
    _levels(events, meter, spans)
    return events.text()


def _program(events: TraceEvents, p: Prediction, device: int, start: float) -> None:
    name = p.launch.program.name
    args = {"op": p.launch.op, "line": p.launch.where, "call": p.launch.event}
    if p.unpriced:
        events.instant(name, "unpriced", (device, 0), start / 1000, args | {"no price": p.unpriced})
        return
    args |= {"low us": round(p.low_ns / 1000, 3), "high us": round(p.high_ns / 1000, 3), "bound": p.bound}
    events.span(name, p.kind, (device, 0), start / 1000, (start + p.ns) / 1000, args)


def _starts(meter: Meter, spans: Spans) -> dict[int, float]:
    """By call, when it begins; one that puts nothing on a device begins where the one before it ends."""
    starts = {}
    last = 0.0
    for number, _, _ in meter.calls:
        start, end = spans.get(number, (last, last))
        starts.setdefault(number, start)
        last = max(last, end)
    return starts


def _host(events: TraceEvents, meter: Meter, spans: Spans) -> None:
    starts = _starts(meter, spans)
    for number, (op, where, shapes), _ in meter.calls:
        args = {"call": number, "line": where, "shapes": [list(shape) for shape in shapes]}
        if number in spans:
            start, end = spans[number]
            events.span(op, "host", (HOST, 0), start / 1000, end / 1000, args)
        else:
            events.instant(op, "host", (HOST, 0), starts[number] / 1000, args)


def _levels(events: TraceEvents, meter: Meter, spans: Spans) -> None:
    starts = _starts(meter, spans)
    for level in meter.levels:
        end = spans.get(level.event, (0.0, starts[level.event]))[1]
        events.level(f"mesh {level.mesh}: a bank of {level.memory}", HOST, end / 1000, level.allocated)
