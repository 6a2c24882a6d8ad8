"""Memory of a program: peaks and what is live at them, fragmentation, and what iterations leave behind.

All figures come from ttnn's own allocator, which the mock mesh really runs (see :mod:`tt_impl.harness.watch.meter`).

    level of a bank   ____/''\\__/'''''\\____     peak: the highest level, also inside an operation; the operation
                                                  that reached it, and who owned the memory then
    iterations        |  1   |  2   |  3   |      leak: what iteration i took and what is still there after i + 1, the
                                                  first one (caches, semaphores made once) left out
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from tt_impl.harness.reports import exhausted
from tt_impl.harness.watch.exhausted import Holder
from tt_impl.harness.watch.meter import Allocation, Level, Meter, Place, follow

TOP = 8
"""Owners that are named."""
MEMORIES = ("DRAM", "L1", "L1_SMALL")
REPETITIONS = 3
_SHORTEST = 3
"""Calls of a sequence that may be an iteration; a shorter one is more likely a list that is being filled."""
_LONGEST = 20_000
"""Calls of a program in which repetitions are looked for."""


@dataclass(frozen=True)
class Leak:
    """Memory that every iteration but the first takes and does not give back: ``bytes`` of each bank, each time."""

    allocation: Allocation
    bytes: int
    count: int
    iterations: int
    marked: bool

    @property
    def sentence(self) -> str:
        of = self.allocation
        what = f"{list(of.shape)} {of.dtype}" if of.dtype else "memory without a tensor"
        return (
            f"{of.op} at {of.where} leaves {self.bytes} bytes per bank of {of.memory} ({what}) "
            f"behind in each of {self.iterations} iterations."
        )


def summary(meter: Meter) -> dict[str, Any]:
    """Return everything as JSON values.

    ``meshes``: per mesh ``mesh``, ``devices`` (the figures are those of each of them), ``shape``, ``arch`` and by
    kind of memory ``banks``, ``bank_bytes``, ``peak`` (``bytes_per_bank``, ``bytes`` of all banks, ``event``, ``op``,
    ``where``, ``live``: the :data:`TOP` largest owners), ``end_bytes_per_bank``, ``fragmentation`` (of the call after
    which the largest free block was the smallest part of what was free). L1 has ``with_programs`` too: the highest
    sum of tensors and circular buffers on the fullest core.
    ``leaks``: see :class:`Leak`; ``growing``: see :func:`growing`.
    ``unknown_layouts``: programs whose circular buffers ttnn would not tell.
    """
    meter.finish()
    return {
        "meshes": [_mesh(meter, mesh, about) for mesh, about in meter.meshes.items()],
        "leaks": (leaking := [_as_json(leak) for leak in leaks(meter)]),
        "growing": growing(meter, {(leak["op"], leak["where"]) for leak in leaking}),
        "unknown_layouts": sum(launch.layout is None for launch in meter.launches),
    }


def _mesh(meter: Meter, mesh: int, about: dict[str, Any]) -> dict[str, Any]:
    usage = {name: about[name] for name in ("devices", "shape", "arch")} | {"mesh": mesh}
    for memory in MEMORIES:
        levels = [level for level in meter.levels if (level.mesh, level.memory) == (mesh, memory)]
        if not levels:
            continue
        banks = about["dram_banks"] if memory == "DRAM" else about["l1_banks"]
        usage[memory] = {
            "banks": banks,
            "bank_bytes": levels[-1].allocated + levels[-1].free,
            "peak": _peak(meter, mesh, memory, banks),
            "end_bytes_per_bank": levels[-1].allocated,
            "fragmentation": _fragmentation(levels),
        }
    if "L1" in usage:
        usage["L1"]["with_programs"] = _with_programs(meter, mesh, usage["L1"]["peak"])
    return usage


def _peak(meter: Meter, mesh: int, memory: str, banks: int) -> dict[str, Any]:
    level = 0
    highest = 0
    place = -1
    for i, (sign, _, allocation) in enumerate(meter.history):
        if allocation.place[:2] == (mesh, memory):
            level += sign * allocation.bytes
            if level > highest:
                highest = level
                place = i
    if place < 0:
        return {"bytes_per_bank": 0, "bytes": 0, "event": None, "op": "", "where": "", "live": []}
    _, event, last = meter.history[place]
    live, _ = _live_at_peak(meter, mesh, memory)
    return {
        "bytes_per_bank": highest,
        "bytes": highest * banks,
        "event": event,
        "op": last.op,
        "where": last.where,
        "live": owners(live)[:TOP],
    }


def owners(live: Iterable[Allocation]) -> list[dict[str, Any]]:
    """Join allocations by who made them, the largest first."""
    groups: dict[tuple, list[Allocation]] = defaultdict(list)
    for allocation in live:
        groups[allocation.owner].append(allocation)
    joined = [
        {"op": one.op, "where": one.where, "shape": list(one.shape), "dtype": one.dtype}
        | {"count": 1 + len(more), "bytes_per_bank": one.bytes * (1 + len(more))}
        for one, *more in groups.values()
    ]
    return sorted(joined, key=lambda owner: -owner["bytes_per_bank"])


def _fragmentation(levels: list[Level]) -> dict[str, Any]:
    """Find the worst moment, by how much of what is free is not in the largest block."""
    worst = min(levels, key=lambda level: level.largest_free / level.free if level.free else 1.0)
    share = 1 - worst.largest_free / worst.free if worst.free else 0.0
    smallest = min(level.largest_free for level in levels)
    return {
        "share": round(share, 6),
        "event": worst.event,
        "free_per_bank": worst.free,
        "largest_free_per_bank": worst.largest_free,
        "smallest_largest_free_per_bank": smallest,
    }


def _with_programs(meter: Meter, mesh: int, peak: dict[str, Any]) -> dict[str, Any]:
    """Find the highest sum of what tensors take of a core and the circular buffers of the program beside them.

    No less than the peak of the tensors alone, also where ttnn would not tell a program's circular buffers.
    """
    place_of_peak = {name: peak[name] for name in ("event", "op", "where")}
    highest = {"bytes": peak["bytes_per_bank"], "cb_bytes": 0} | place_of_peak
    level = 0
    changes: dict[int, list[int]] = {after.event: [] for after in meter.levels if after.mesh == mesh}
    seen = set(changes)
    for sign, event, allocation in meter.history:
        if allocation.place[:2] == (mesh, "L1"):
            changes.setdefault(event, []).append(sign * allocation.bytes)
    during: dict[int, int] = {}
    for event in sorted(changes):
        reached = list(accumulate(changes[event], initial=level))
        during[event] = max(reached)
        level = reached[-1]
    for launch in meter.launches:
        if launch.layout is not None and launch.event in seen:
            total = during[launch.event] + launch.layout.cb_bytes
            if total > highest["bytes"]:
                highest = {"bytes": total, "cb_bytes": launch.layout.cb_bytes, "event": launch.event}
                highest |= {"op": launch.op, "where": launch.where}
    return highest


def leaks(meter: Meter) -> list[Leak]:
    """Find what iterations leave behind; without marks, of the longest sequence of calls that repeats itself.

    Bytes are those of a bank: where a line leaves memory on several submeshes, of the one where it is the most.
    """
    meter.finish()
    marked = len(meter.marks) >= REPETITIONS
    marks = meter.marks if marked else repetitions(meter)
    if len(marks) < REPETITIONS:
        return []
    freed_at = _freed_at(meter)
    starts = [0, *marks[:-1]]
    left: list[dict[tuple, list[Allocation]]] = []
    for i in range(1, len(marks) - 1):  # the last one's results may still be in use
        survivors: dict[tuple, list[Allocation]] = defaultdict(list)
        for place in range(starts[i], marks[i]):
            sign, _, allocation = meter.history[place]
            if sign > 0 and freed_at.get(place, len(meter.history)) >= marks[i + 1]:
                survivors[allocation.mesh, allocation.owner].append(allocation)
        left.append(survivors)
    always = set.intersection(*map(set, left))
    lost: dict[tuple, Leak] = {}
    for key in filter(always.__contains__, left[-1]):
        group = left[-1][key]
        leak = Leak(group[0], sum(one.bytes for one in group), len(group), len(marks) - 1, marked)
        owner = group[0].owner
        lost[owner] = max(lost.get(owner, leak), leak, key=lambda leak: leak.bytes)
    return sorted(lost.values(), key=lambda leak: -leak.bytes)


def growing(meter: Meter, known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Find lines, but ``known`` ones, whose tensors pile up: each was used, but not since the line made its next one.

    Looked at where most of a kind of memory is taken; ``bytes_per_bank`` are those of the ``count`` tensors that are
    left there, for which ``sentence`` says so.
    """
    uses = meter.uses()
    lines = []
    for mesh in meter.meshes:
        for memory in MEMORIES:
            live, end = _live_at_peak(meter, mesh, memory)
            holders = [_holder(allocation, uses, end) for allocation in live]
            for group in exhausted.by_line(holders):
                left, _ = exhausted.unused(group)
                last = group[-1]
                if len(left) >= REPETITIONS and (last.op, last.where) not in known:
                    size = sum(holder.bytes for holder in left)
                    about = {"op": last.op, "where": last.where, "memory": memory, "count": len(left)}
                    sentence = (
                        f"{last.op} at {last.where} keeps what it made before: {len(left)} tensors, {size} bytes per "
                        f"bank of {memory}, were used, but not since that line made its next one."
                    )
                    lines.append(about | {"bytes_per_bank": size, "sentence": sentence})
    return lines


def _live_at_peak(meter: Meter, mesh: int, memory: str) -> tuple[list[Allocation], int]:
    """Return what is allocated where most is, and the event in which that is."""
    level = 0
    highest = 0
    live: dict[Place, Allocation] = {}
    most: list[Allocation] = []
    end = 0
    for sign, event, allocation in meter.history:
        if allocation.place[:2] == (mesh, memory):
            follow(live, sign, allocation)
            level += sign * allocation.bytes
            if level > highest:
                highest = level
                most = list(live.values())
                end = event
    return most, end


def _holder(allocation: Allocation, uses: dict[tuple[str, int], list[int]], end: int) -> Holder:
    """Say of an allocation which event up to ``end`` was the last with a tensor there."""
    events = uses.get((allocation.memory, allocation.address), [])
    used = max((number for number in events if allocation.event <= number <= end), default=allocation.event)
    about = allocation.op, allocation.where, allocation.event, used, allocation.shape, allocation.dtype
    return Holder(allocation.address, allocation.bytes, *about)


def _freed_at(meter: Meter) -> dict[int, int]:
    """Return where in the history memory was given back, by the place in it where it was taken."""
    taken: dict[Place, int] = {}
    freed = {}
    for i, (sign, _, allocation) in enumerate(meter.history):
        if sign > 0:
            taken[allocation.place] = i
        elif allocation.place in taken:
            freed[taken.pop(allocation.place)] = i
    return freed


def repetitions(meter: Meter) -> list[int]:
    """Find the places in the history where a sequence of calls ends that repeats itself, four times or more in a row.

    The longest such sequence counts, and only if programs run in it: a loop that only puts weights on a mesh is none.
    """
    calls = meter.calls[-_LONGEST:]
    tokens = [call[1] for call in calls]
    places: dict[tuple, list[int]] = defaultdict(list)
    for i, token in enumerate(tokens):
        places[token].append(i)
    best: list[int] = []
    launched = {launch.event for launch in meter.launches}
    for alike in places.values():
        if len(alike) <= REPETITIONS:
            continue
        blocks = [tokens[a:b] for a, b in pairwise(alike)]
        run = 1
        while run < len(blocks) and blocks[-run - 1] == blocks[-1]:
            run += 1
        starts = alike[-run - 1 :]
        if run < REPETITIONS or len(blocks[-1]) < _SHORTEST:
            continue
        busy = any(calls[i][0] in launched for i in range(starts[0], starts[1]))
        if busy and (not best or len(blocks[-1]) > best[1] - best[0]):
            best = starts
    return [calls[i][2] for i in best[1:]]


def _as_json(leak: Leak) -> dict[str, Any]:
    of = leak.allocation
    about = {name: getattr(of, name) for name in ("op", "where", "memory", "dtype")} | {"shape": list(of.shape)}
    about |= {"bytes_per_bank_each": leak.bytes, "count_each": leak.count, "iterations": leak.iterations}
    return about | {"marked": leak.marked, "sentence": leak.sentence}
