"""Events in the form that https://ui.perfetto.dev and chrome://tracing open: tracks, spans, arrows, levels.

    process  device 0    thread compute  | block 17 / attn.to_q: linear |
                         thread fabric      | block 17 / attn: all_gather |--.     an arrow, from a span to a span
    process  device 1    thread fabric      | block 17 / attn: all_gather |<-'
                         counter memory  ____/''''\\____

Times are in us, to the ns. The form is Chrome's Trace Event Format, as one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from refsim.files import output

HOST = 1_000_000
"""Process id of the host's track; devices have their own numbers."""
_NS = 0.001

Place = tuple[int, int]
"""A track: process (a device), thread in it."""


def is_lines(path: Path) -> bool:
    """Whether a trace is to be a log of events, one JSON object a line, by its name; else it is of this form."""
    return path.suffix == ".jsonl"


def label(place: str, module: str, op: str) -> str:
    """Return what a span is called: ``block 17 / attn.to_q: linear``; what is not known is left out."""
    where = " / ".join(part for part in (place, module) if part)
    return f"{where}: {op}" if where else op


class TraceEvents:
    """A trace under way. ``title`` says what ran, and whether times are measured or predicted."""

    def __init__(self, title: str, **about: str) -> None:
        self._about = {"title": title, **about}
        self._events: list[dict[str, Any]] = []
        self._arrows = 0

    def process(self, pid: int, name: str, threads: Iterable[str] = ()) -> None:
        """Name a process and its threads, which are numbered in this order."""
        self._event("M", "process_name", (pid, 0), args={"name": name})
        for tid, thread in enumerate(threads):
            self._event("M", "thread_name", (pid, tid), args={"name": thread})

    def span(self, name: str, kind: str, place: Place, start: float, end: float, args: dict[str, Any]) -> None:
        """Add something that took time; ``start`` and ``end`` in us."""
        ts = _us(start)
        self._event("X", name, place, ts=ts, dur=_us(_us(end) - ts), cat=kind, args=args)

    def instant(self, name: str, kind: str, place: Place, at: float, args: dict[str, Any]) -> None:
        """Add something that has a moment but no length."""
        self._event("i", name, place, ts=_us(at), s="t", cat=kind, args=args)

    def level(self, name: str, pid: int, at: float, value: float) -> None:
        """Say what a process's counter stands at from ``at`` on."""
        self._event("C", name, (pid, 0), ts=_us(at), args={"bytes": value})

    def arrow(self, name: str, source: tuple[Place, float], target: tuple[Place, float]) -> None:
        """Draw an arrow from the span that begins at ``source`` to the one that ends at ``target``."""
        first, start = source
        second, end = target
        start = _us(start)
        self._arrows += 1
        self._event("s", name, first, ts=start, id=self._arrows, cat="transfer")
        # an arrow belongs to the span around its moment, and at its very end a span is over
        last = max(_us(_us(end) - _NS), start)
        self._event("f", name, second, ts=last, id=self._arrows, cat="transfer", bp="e")

    def text(self) -> str:
        """Return the JSON text: names first, then by time, and of what begins together the longest first."""
        ordered = sorted(self._events, key=lambda e: (e.get("ts", -1.0), -e.get("dur", 0.0)))
        return json.dumps({"traceEvents": ordered, "displayTimeUnit": "ns", "otherData": self._about})

    def write(self, path: Path) -> None:
        output.write(path, self.text().encode(), "--trace")

    def _event(self, ph: str, name: str, place: Place, **more: Any) -> None:
        self._events.append({"ph": ph, "name": name, "pid": place[0], "tid": place[1], **more})


def _us(value: float) -> float:
    return round(value, 3)
