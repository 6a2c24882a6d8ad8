"""Two runs of a program, or of two versions of it: where the first value, shape, collective, peak or time differs.

    A   linear  gelu  all_gather  add                   calls are put beside each other by what they are and the shapes
    B   linear        all_gather  add  reduce_scatter   they take; what has no partner was left out or put in
          =             = value        +

Both are reports (:mod:`tt_impl.harness.reports.index`), so nothing here needs ttnn. Lines may move; ids of
buffers and addresses are not compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from refsim.files.keys import Document

Operation = dict[str, Any]
_KINDS = {"dtype": "dtype", "layout": "layout", "memory": "placement", "sharding": "placement"}
SHOWN = 12
"""Calls without a partner that the text names."""


@dataclass(frozen=True)
class Tolerance:
    """What still counts as the same.

    Attributes:
        pcc: least correlation of two results, over the sample that reports keep; 1 asks for equal bits.
        memory, time: most relative growth, or fall, of a peak and of the predicted time.
    """

    pcc: float = 1.0
    memory: float = 0.0
    time: float = 0.0


@dataclass(frozen=True)
class Difference:
    """``a`` and ``b``: the calls, where there are some.

    ``kind``: operation (one without a partner), shape, dtype, layout, placement, value, collective, fusion, memory,
    time or overlap.
    """

    kind: str
    sentence: str
    a: dict[str, Any] | None = None
    b: dict[str, Any] | None = None


@dataclass
class Diff(Document):
    """What differs, the first of every kind; ``only_a`` and ``only_b`` are all calls without a partner.

    Attributes:
        differences: The first of every kind: ``kind``, ``sentence``, and the calls ``a`` and ``b``.
        unknown: Results whose values neither run knows.
    """

    KEYS = ("same", "differences", "only_a", "only_b", "unknown", "predicted_ns")

    differences: list[Difference] = field(default_factory=list)
    only_a: list[dict[str, Any]] = field(default_factory=list)
    only_b: list[dict[str, Any]] = field(default_factory=list)
    unknown: int = 0
    predicted_ns: tuple[float, float] = (0.0, 0.0)

    @property
    def same(self) -> bool:
        return not self.differences

    def text(self) -> str:
        """Lines for people."""
        a, b = (f"{ns / 1000:.1f}" for ns in self.predicted_ns)
        head = f"predicted {a} us -> {b} us"
        if self.unknown:
            head += f"; {self.unknown} results are known to neither run and were not compared"
        if self.same:
            return f"the same; {head}."
        lines = [f"different; {head}."] + [f"  first {d.kind}: {d.sentence}" for d in self.differences]
        for mark, calls in (("-", self.only_a), ("+", self.only_b)):
            lines += [f"  {mark} {call['op']} {call['shapes']} at {call['where']}" for call in calls[:SHOWN]]
            if len(calls) > SHOWN:
                lines.append(f"  {mark} and {len(calls) - SHOWN} more")
        return "\n".join(lines)


def diff(a: dict[str, Any], b: dict[str, Any], tolerance: Tolerance = Tolerance()) -> Diff:
    """Compare two reports; ``a`` is the older one."""
    result = Diff(predicted_ns=(a["cost"]["ns"], b["cost"]["ns"]))
    first: dict[str, Difference] = {}
    for left, right in align(a["operations"], b["operations"]):
        if left is None or right is None:
            only = result.only_a if right is None else result.only_b
            only.append(_call(left or right))
            first.setdefault("operation", _unpaired(left, right))
            continue
        pairs = zip(left["outputs"], right["outputs"], strict=False)
        result.unknown += sum(a["value"] is None and b["value"] is None for a, b in pairs)
        for difference in _of_pair(left, right, tolerance):
            first.setdefault(difference.kind, difference)
    for difference in (*_collectives(a, b), *_memory(a, b, tolerance), *_time(a, b, tolerance)):
        first.setdefault(difference.kind, difference)
    result.differences = list(first.values())
    return result


def align(
    a: list[Operation], b: list[Operation]
) -> Iterator[tuple[Operation, None] | tuple[None, Operation] | tuple[Operation, Operation]]:
    """List the calls of both in program order, beside each other where they are the same operation.

    First by operation and shapes; what is left between two such calls by operation alone.
    """
    for left, right in _matched(a, b, _shaped):
        yield from _matched(left, right, lambda call: call["op"]) if isinstance(left, list) else [(left, right)]


def _matched(a: list, b: list, token: Any) -> Iterator[Any]:
    """Pairs of equal tokens; between them, calls on either side: as two lists if there are some on both."""
    by_shape = token is _shaped
    matcher = SequenceMatcher(None, [token(call) for call in a], [token(call) for call in b], autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "equal":
            yield from zip(a[a0:a1], b[b0:b1], strict=True)
        elif kind == "replace" and by_shape:
            yield a[a0:a1], b[b0:b1]
        else:
            yield from ((call, None) for call in a[a0:a1])
            yield from ((None, call) for call in b[b0:b1])


def _shaped(call: Operation) -> tuple:
    return (
        call["op"],
        tuple(tuple(t["shape"]) for t in call["inputs"]),
        tuple(tuple(t["shape"]) for t in call["outputs"]),
    )


def _call(call: Operation) -> dict[str, Any]:
    shapes = [t["shape"] for t in call["inputs"]]
    return {"number": call["number"], "op": call["op"], "where": call["where"], "shapes": shapes}


def _unpaired(left: Operation | None, right: Operation | None) -> Difference:
    call, which = (left, "only A calls") if right is None else (right, "only B calls")
    sentence = f"{which} {call['op']} (call {call['number']} at {call['where']})."
    return Difference("operation", sentence, *(None if c is None else _call(c) for c in (left, right)))


def _of_pair(left: Operation, right: Operation, tolerance: Tolerance) -> Iterator[Difference]:
    """Find what differs between two calls of one operation."""
    calls = _call(left), _call(right)
    place = f"{left['op']} at {left['where']} -> {right['where']}"
    for i, (a, b) in enumerate(zip(left["outputs"], right["outputs"], strict=False)):
        if a["shape"] != b["shape"]:
            yield Difference("shape", f"result {i} of {place}: {a['shape']} -> {b['shape']}.", *calls)
            continue
        for name, kind in _KINDS.items():
            if a[name] != b[name]:
                yield Difference(kind, f"{name} of result {i} of {place}: {a[name]} -> {b[name]}.", *calls)
        if (how := _values(a["value"], b["value"], tolerance)) is not None:
            yield Difference("value", f"result {i} of {place}: {how}.", *calls)
    if len(left["outputs"]) != len(right["outputs"]):
        yield Difference("shape", f"results of {place}: {len(left['outputs'])} -> {len(right['outputs'])}.", *calls)


def _values(a: dict[str, Any] | None, b: dict[str, Any] | None, tolerance: Tolerance) -> str | None:
    """How two results differ; None if they do not, or if both are unknown."""
    if a is None or b is None:
        return None if a is b else f"its value is known to {'B' if a is None else 'A'} only"
    if a["digest"] == b["digest"]:
        return None
    correlation = pcc(a["sample"], b["sample"])
    if a["nan"] != b["nan"]:
        return f"{a['nan']} -> {b['nan']} elements are not numbers"
    if tolerance.pcc < 1 and correlation >= tolerance.pcc and math.isclose(a["rms"], b["rms"], rel_tol=0.05):
        return None
    return f"PCC {correlation:.6f} over {len(a['sample'])} sampled elements, rms {a['rms']:.6g} -> {b['rms']:.6g}"


def pcc(a: list[float], b: list[float]) -> float:
    """Pearson's correlation; 1 for two that are equal, 0 where one is constant or longer and they differ."""
    try:
        return 1.0 if a == b else statistics.correlation(a, b)
    except statistics.StatisticsError:
        return 0.0


def _collectives(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    """Find the first place where the sequences part, and what was part of another operation and no longer is."""
    left = a["collectives"]
    right = b["collectives"]
    common = min(len(left), len(right))
    place = next((i for i in range(common) if _crossing(left[i]) != _crossing(right[i])), common)
    if place < max(len(left), len(right)):
        pair = [c[place] if place < len(c) else None for c in (left, right)]
        shown = [_shown(c) if c else "none" for c in pair]
        yield Difference("collective", f"number {place}: {shown[0]} -> {shown[1]}.", *map(_short, pair))
    fused = [[c for c in side if c.get("within")] for side in (left, right)]
    if len(fused[0]) > len(fused[1]):
        lost = fused[0][len(fused[1])]
        sentence = (
            f"{len(fused[0])} -> {len(fused[1])} collectives run inside another operation; {lost['collective']} was "
            f"part of {lost['within']} at {lost['where']} and overlapped with it."
        )
        yield Difference("fusion", sentence, _short(lost), None)


def _crossing(c: dict[str, Any]) -> tuple:
    return tuple(c.get(name) for name in ("collective", "axis", "bytes", "topology", "links"))


def _shown(c: dict[str, Any]) -> str:
    wires = ", ".join(str(c[name]) + unit for name, unit in (("topology", ""), ("links", " links")) if c.get(name))
    return f"{c['collective']} over axis {c['axis']}, {c['bytes']} bytes, {wires or 'ttnn chooses the links'} " + (
        f"({c['op']} at {c['where']})"
    )


def _short(c: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if c is None else {name: c[name] for name in ("number", "op", "where")}


def _beyond(a: float, b: float, tolerance: float) -> bool:
    return abs(b - a) > tolerance * max(abs(a), 1e-9) + 1e-6


def _memory(a: dict[str, Any], b: dict[str, Any], tolerance: Tolerance) -> Iterator[Difference]:
    """Peaks of DRAM and of L1 (with circular buffers), of the device that has most."""
    for kind in ("DRAM", "L1"):
        peaks = []
        for report in (a, b):
            usages = [m[kind] for m in report["memory"]["meshes"] if kind in m]
            shown = [m["peak"] if kind == "DRAM" else m["with_programs"] for m in usages]
            peaks.append(
                max(shown, key=lambda p: p["bytes"], default={"bytes": 0, "op": "", "where": "", "event": None})
            )
        if _beyond(peaks[0]["bytes"], peaks[1]["bytes"], tolerance.memory):
            of = "a device" if kind == "DRAM" else "the fullest core"
            sides = [f"{p['bytes']} bytes ({p['op']} at {p['where']})" for p in peaks]
            ends = ({"number": p["event"], "op": p["op"], "where": p["where"]} for p in peaks)
            yield Difference("memory", f"peak of {kind} of {of}: {sides[0]} -> {sides[1]}.", *ends)


def _time(a: dict[str, Any], b: dict[str, Any], tolerance: Tolerance) -> Iterator[Difference]:
    """Compare the predicted time, and the share of it that devices are busy: less means that they wait."""
    before = a["cost"]
    after = b["cost"]
    if _beyond(before["ns"], after["ns"], tolerance.time):
        change = f", {after['ns'] / before['ns'] - 1:+.1%}" if before["ns"] else ""
        yield Difference("time", f"predicted {before['ns'] / 1000:.1f} us -> {after['ns'] / 1000:.1f} us{change}.")
    shares = [_busy(side) for side in (before, after)]
    if shares[1] < shares[0] - max(tolerance.time, 0.05):
        yield Difference(
            "overlap",
            f"devices are busy {shares[0]:.0%} -> {shares[1]:.0%} of the predicted time: what ran at once now waits.",
        )


def _busy(cost: dict[str, Any]) -> float:
    """Return the mean share of the time that a device is busy."""
    times = list(cost["busy_ns"].values())
    return sum(min(ns / cost["ns"], 1.0) for ns in times) / len(times) if times and cost["ns"] else 1.0
