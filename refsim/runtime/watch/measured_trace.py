"""The event trace of a run as https://ui.perfetto.dev opens it: every device's compute, transfers and memory, measured.

    device 0   compute   | block 0 / attn.to_q+to_k+to_v: linear |      | block 0 / attn: sdpa |
               send 1                           | block 0 / attn: ring_attention |---.
    device 1   recv 1    | block 0 / attn: ring_attention                          |<--'
               memory    what the rank's process has allocated; weights lie in the checkpoint's pages and are not in it

Transfers that are under way at once have tracks of their own: ``send 1``, ``send 2``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from refsim.files.trace_events import Place, TraceEvents, is_lines, label
from refsim.runtime.watch.trace import write_jsonl

Event = dict[str, Any]
"""As :class:`refsim.runtime.watch.trace.Event` has it."""
_TRANSFERS = ("send", "recv")
_SHOWN = ("op", "shapes", "dtype", "step", "buffer", "collective", "group", "axis", "topology", "peer")


def write(events: list[Event], path: Path, title: str) -> None:
    """Write the events of all ranks; ``title`` says what ran. Into FILE.jsonl go the events as they are, one a line."""
    if is_lines(path):
        write_jsonl(events, path)
    else:
        trace_events(events, title).write(path)


def trace_events(events: list[Event], title: str) -> TraceEvents:
    """Return the events of all ranks as a trace."""
    trace = TraceEvents(f"{title}: measured")
    zero = min((event["start"] for event in events), default=0.0)
    by_rank: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_rank[event["rank"]].append(event)
    places: dict[int, Place] = {}
    for rank, of_rank in sorted(by_rank.items()):
        tracks = _tracks(of_rank)
        trace.process(rank, f"device {rank}, measured", tracks)
        places |= {id(event): (rank, tid) for tid, track in enumerate(tracks.values()) for event in track}
        for event in of_rank:
            start, end = (1e6 * (event[moment] - zero) for moment in ("start", "end"))
            kind = "transfer" if event["op"] in _TRANSFERS else "compute"
            trace.span(_name(event), kind, places[id(event)], start, end, _arguments(event))
            if event["memory"] is not None:
                trace.level("memory", rank, start, event["memory"])
    for sent, received in transfers(events):
        source = places[id(sent)], 1e6 * (sent["start"] - zero)
        trace.arrow(_name(sent), source, (places[id(received)], 1e6 * (received["end"] - zero)))
    return trace


def transfers(events: list[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield every send with the receive that takes it: the nth of two ranks' channel belong together."""
    sends: dict[tuple[int, int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["op"] == "send":
            sends[event["rank"], event["peer"], event["channel"]].append(event)
    waiting = {key: iter(of_key) for key, of_key in sends.items()}
    for event in events:
        if event["op"] == "recv":
            yield next(waiting[event["peer"], event["rank"], event["channel"]]), event


def _tracks(events: list[Event]) -> dict[str, list[Event]]:
    """Return the events of one rank by track; within a track no two transfers overlap."""
    tracks: dict[str, list[Event]] = {"compute": []}
    for event in sorted(events, key=lambda e: e["start"]):
        if event["op"] not in _TRANSFERS:
            tracks["compute"].append(event)
            continue
        number = 1
        while (track := tracks.setdefault(f"{event['op']} {number}", [])) and track[-1]["end"] > event["start"]:
            number += 1
        track.append(event)
    return dict(sorted(tracks.items()))


def _name(event: Event) -> str:
    return label(event["where"], "", event["collective"] if event["op"] in _TRANSFERS else event["op"])


def _arguments(event: Event) -> dict[str, Any]:
    arguments = {key: event[key] for key in _SHOWN if event[key] not in (None, "", "-", -1)}
    size: int = getattr(torch, event["dtype"]).itemsize
    return arguments | {"bytes": event["bytes"] or size * sum(map(math.prod, event["shapes"]))}
