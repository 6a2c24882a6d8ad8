"""A program as Chrome's trace events: calls on the host, device operations on each device, levels of memory.

    host       | linear       | gelu  | all_gather          |     calls, in order, as long as what they put on devices
    device 0   | Matmul  ||Un.|| Unary|| AllGather          |     predicted durations
    memory       ___/'''''\\___/''''''\\____________________      DRAM and L1 of a bank, after every call

No moment of it was measured: programs follow each other as :mod:`tt_impl.harness.schedule` lays them out.
"""

from __future__ import annotations

import json
from typing import Any

from tt_impl.harness.cost import SOURCE
from tt_impl.harness.meter import Meter
from tt_impl.harness.prediction import Prediction
from tt_impl.harness.schedule import schedule
from tt_impl.harness.session import Session

HOST = 1_000_000
"""Process id of the host's lane; devices have their own ids."""


def trace(session: Session, predictions: list[Prediction]) -> str:
    """The JSON text that https://ui.perfetto.dev and chrome://tracing open; times are in us."""
    meter = session.meter
    events = [_named(HOST, "host: calls in order (times predicted)")]
    for device in sorted({d for about in meter.meshes.values() for d in about["devices"]}):
        events.append(_named(device, f"device {device} (predicted, not measured)"))
    spans: dict[int, tuple[float, float]] = {}
    starts = schedule(session.log.events, predictions, meter.meshes).starts
    for p, start in zip(predictions, starts, strict=True):
        spans[p.launch.event] = spans.get(p.launch.event, (start, start))[0], start + p.ns
        events += [_program(p, device, start) for device in meter.meshes[p.launch.mesh]["devices"]]
    events += _host(meter, spans) + _levels(meter, spans)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"source": SOURCE}})


def _named(process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def _program(p: Prediction, device: int, start: float) -> dict[str, Any]:
    event: dict[str, Any] = {"name": p.launch.program.device_op, "pid": device, "tid": 0, "ts": round(start / 1000, 3)}
    args = {"op": p.launch.op, "line": p.launch.where, "call": p.launch.event}
    if p.unpriced:
        return event | {"ph": "i", "s": "t", "cat": "unpriced", "args": args | {"no price": p.unpriced}}
    spread = {"low us": round(p.low_ns / 1000, 3), "high us": round(p.high_ns / 1000, 3), "bound": p.bound}
    return event | {"ph": "X", "dur": round(p.ns / 1000, 3), "cat": p.kind, "args": args | spread}


def _starts(meter: Meter, spans: dict[int, tuple[float, float]]) -> dict[int, float]:
    """By call, when it begins; one that puts nothing on a device begins where the one before it ends."""
    found, last = {}, 0.0
    for number, _, _ in meter.calls:
        start, end = spans.get(number, (last, last))
        found.setdefault(number, start)
        last = max(last, end)
    return found


def _host(meter: Meter, spans: dict[int, tuple[float, float]]) -> list[dict[str, Any]]:
    events, starts = [], _starts(meter, spans)
    for number, (op, where, shapes), _ in meter.calls:
        event: dict[str, Any] = {"name": op, "pid": HOST, "tid": 0, "ts": round(starts[number] / 1000, 3)}
        event["args"] = {"call": number, "line": where, "shapes": [list(shape) for shape in shapes]}
        if number in spans:
            start, end = spans[number]
            events.append(event | {"ph": "X", "dur": round((end - start) / 1000, 3), "cat": "host"})
        else:
            events.append(event | {"ph": "i", "s": "t", "cat": "host"})
    return events


def _levels(meter: Meter, spans: dict[int, tuple[float, float]]) -> list[dict[str, Any]]:
    starts = _starts(meter, spans)
    events = []
    for level in meter.levels:
        end = spans.get(level.event, (0.0, starts[level.event]))[1]
        name = f"mesh {level.mesh}: bytes of a bank of {level.memory}"
        place = {"ph": "C", "name": name, "pid": HOST, "tid": 0, "ts": round(end / 1000, 3)}
        events.append(place | {"args": {"allocated": level.allocated}})
    return events
