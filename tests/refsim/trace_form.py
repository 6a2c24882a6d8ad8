"""A reader of Chrome's Trace Event Format that refuses what the format's description does not allow."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise
from typing import Any

Event = dict[str, Any]


def read(text: str) -> dict[str, Any]:
    """Return the document, having checked that every event has its phase's fields, in the right order and place."""
    document = json.loads(text)
    events = document["traceEvents"]
    assert all(set(e) >= {"ph", "name", "pid", "tid"} and e["ph"] in "MXiCsf" for e in events)
    assert [e["ph"] == "M" for e in events] == sorted((e["ph"] == "M" for e in events), reverse=True)
    timed = [e for e in events if e["ph"] != "M"]
    assert all(e["ts"] >= 0 for e in timed) and all(a["ts"] <= b["ts"] for a, b in pairwise(timed))
    lanes: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for e in timed:
        if e["ph"] == "X":
            lanes[e["pid"], e["tid"]].append(e)
        if e["ph"] == "C":
            assert e["args"] and all(value >= 0 for value in e["args"].values())
    for spans in lanes.values():
        _check_nesting(spans)
    _check_arrows(timed, lanes)
    return document


def _check_nesting(spans: list[Event]) -> None:
    """Check that a span lies in the one that is open, or begins when that is over."""
    around: list[float] = []
    for span in spans:
        start, end = span["ts"], span["ts"] + span["dur"]
        while around and around[-1] <= start + 1e-6:
            around.pop()
        assert span["dur"] >= 0 and (not around or end <= around[-1] + 1e-6), span
        around.append(end)


def _check_arrows(events: list[Event], lanes: dict[tuple[int, int], list[Event]]) -> None:
    """Check that an id has one start, then one end, each in the last span of its lane that has begun."""
    ends: dict[tuple[str, int], Event] = {}
    begins = {place: [span["ts"] for span in spans] for place, spans in lanes.items()}
    for e in events:
        if e["ph"] in "sf":
            assert ends.setdefault((e["ph"], e["id"]), e) is e
            place = e["pid"], e["tid"]
            span = lanes[place][bisect_right(begins[place], e["ts"]) - 1]
            assert span["ts"] <= e["ts"] <= span["ts"] + span["dur"] + 1e-6, f"no span around {e}"
    starts = {id for ph, id in ends if ph == "s"}
    assert starts == {id for ph, id in ends if ph == "f"}
    assert all(ends["s", id]["ts"] <= ends["f", id]["ts"] and ends["f", id]["bp"] == "e" for id in starts)


def arrows(document: dict[str, Any]) -> list[tuple[Event, Event]]:
    """Every start of an arrow with its end."""
    ends = {(e["ph"], e["id"]): e for e in document["traceEvents"] if e["ph"] in "sf"}
    return [(start, ends["f", id]) for (ph, id), start in ends.items() if ph == "s"]


def lane(document: dict[str, Any], pid: int) -> list[Event]:
    """Return what a process's lanes hold, without the process's number."""
    return [{k: v for k, v in e.items() if k not in ("pid", "id")} for e in document["traceEvents"] if e["pid"] == pid]
