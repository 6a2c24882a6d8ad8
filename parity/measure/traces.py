"""What only the event trace shows: overlap, concurrency of the cfg branches, axes, topologies, traffic.

The answer of a run says nothing about its schedule: a program that gathers first and computes then, or that runs its
guidance branches one after the other, gives the same bits. Every value here is 0 for a program that is as it should
be.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import groupby
from typing import Any

from parity.cases import Layout
from parity.measure.thresholds import Threshold
from refsim.base.mesh import Topology, get_mesh
from refsim.runtime.group import parallel_groups

Event = dict[str, Any]

BOUNDS = (
    Threshold("trace_without_overlap", 0, "every ring step but the last computes while the next shard travels"),
    Threshold("trace_cfg_in_turn", 0, "guidance branches have devices of their own and run at the same time"),
    Threshold("trace_wrong_axis", 0, "a group's transfers stay on its mesh axis"),
    Threshold("trace_wrong_topology", 0, "a Ring needs a wrap-around link, a Line must not leave one idle"),
    Threshold(
        "trace_wrong_direction",
        0,
        "shards walk a Ring to the right, and of two on a Line the one from the left is attended first: this is the "
        "order of additions",
    ),
    Threshold("trace_wrong_chunk", 0, "a block of keys has as many rows as were asked for, or what is left"),
    Threshold(
        "trace_wrong_scheme",
        0,
        "a ring runs inside an exchange of heads where the factors have one, and gathers if asked to",
    ),
    Threshold(
        "trace_wrong_prompt", 0, "the rows of a split prompt travel with the image's, and none is attended apart"
    ),
)
"""What :func:`check` counts."""

FINDINGS = {
    "trace_without_overlap": "it computes while nothing of the next step is under way",
    "trace_cfg_in_turn": "it computes after it has heard of another guidance branch",
    "trace_wrong_axis": "a transfer leaves the mesh axis of its group",
    "trace_wrong_topology": "a transfer of another topology than the mesh axis has",
    "trace_wrong_direction": "a shard that walks the ring to the left, or is attended before the one from the left",
    "trace_wrong_chunk": "it attends to more keys at a time than were asked for",
    "trace_wrong_scheme": "not inside the exchange of heads that the factors have, or in another order of the ring",
    "trace_wrong_prompt": "it attends to a prompt of its own, where the prompt is split",
}


def check(trace: list[Event], layout: Layout) -> dict[str, int]:
    """Count what is wrong in the trace of a run of ``layout``; all 0 where nothing is."""
    return {name: len(events) for name, events in offending(trace, layout).items()}


def offending(trace: list[Event], layout: Layout) -> dict[str, list[Event]]:
    """Return the events that are wrong in the trace of a run of ``layout``, by the keys of :data:`FINDINGS`."""
    mesh = get_mesh(layout.mesh)
    config = layout.config()
    groups = [parallel_groups(mesh, config, rank) for rank in range(mesh.num_devices)]
    chunk = layout.options().chunk_sizes[1]
    wrong: dict[str, list[Event]] = {name: [] for name in FINDINGS}
    for event in trace:
        if event["op"] in ("send", "recv"):
            group = groups[event["rank"]][event["group"]]
            topology = group.topology.value if group.topology else None
            if _axis(event["axis"]) != _axis(group.axis) or event["peer"] not in group.ranks:
                wrong["trace_wrong_axis"].append(event)
            if event["topology"] != topology:
                wrong["trace_wrong_topology"].append(event)
            if _of_ring(event) and event["op"] == "send" and group.topology is Topology.RING:
                if event["peer"] != group.ranks[(group.index + 1) % group.size]:
                    wrong["trace_wrong_direction"].append(event)
        elif _of_ring(event) and event["op"] == "sdpa" and event["shapes"][1][2] > chunk:
            wrong["trace_wrong_chunk"].append(event)
    of_ring = [event for event in trace if _of_ring(event)]
    split = layout.prompt_layout == "split"
    gathered = layout.ring_order == "gather"
    if not gathered and config.ring > 1:
        wrong["trace_without_overlap"] = without_overlap(trace)
    wrong["trace_cfg_in_turn"] = cfg_in_turn(trace)
    wrong["trace_wrong_direction"] += right_before_left(trace)
    for event in of_ring:
        within = event["collective"].split("/")
        gathers = event["op"] in ("send", "recv") and ("all_gather" in within) != gathered
        if ("ulysses" in within) != (config.ulysses > 1) or gathers:
            wrong["trace_wrong_scheme"].append(event)
    wrong["trace_wrong_scheme"] += larger_than_a_block(of_ring, chunk) if layout.ring_order == "block" else []
    wrong["trace_wrong_prompt"] = [event for event in of_ring if split and event["buffer"] == "joint"]
    return wrong


def _of_ring(event: Event) -> bool:
    return "ring_attention" in event["collective"].split("/")


def larger_than_a_block(of_ring: list[Event], chunk: int) -> list[Event]:
    """Return the transfers of a ring of more keys than a block has."""
    attended = [e["shapes"][1] for e in of_ring if e["op"] == "sdpa"]  # (B, H, keys, E)
    most = max((b * heads * chunk * size for b, heads, _, size in attended), default=0)
    return [e for e in of_ring if e["op"] in ("send", "recv") and math.prod(e["shapes"][0]) > most]


def without_overlap(trace: list[Event]) -> list[Event]:
    """Return the first event of every rank's ring step that computes while nothing of the next is under way."""
    alone = []
    by_rank: dict[int, list[Event]] = defaultdict(list)
    for event in trace:
        if _of_ring(event):
            by_rank[event["rank"]].append(event)
    for events in by_rank.values():
        moves = [e for e in events if e["op"] in ("send", "recv")]
        last = max((e["step"] for e in events if e["op"] == "sdpa"), default=0)
        steps = {e["step"] for e in events if e["op"] == "sdpa" and e["step"] < last}
        for step in sorted(steps):
            computing = [e for e in events if e["op"] == "sdpa" and e["step"] == step]
            if not any(m["start"] < c["end"] and c["start"] < m["end"] for c in computing for m in moves):
                alone.append(computing[0])
    return alone


def right_before_left(trace: list[Event]) -> list[Event]:
    """Return what is attended first of a step on a Line though it came from the right: the local shard, which lies
    where shards from the left do, or one beside which another has come from the left."""
    wrong = []
    by_rank: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(trace, key=lambda e: e["start"]):
        if event["op"] == "sdpa" and _of_ring(event):
            by_rank[event["rank"]].append(event)
    for events in by_rank.values():
        for step, attended in groupby(events, key=lambda e: e["step"]):
            first, *others = attended
            alone = step > 0 and not any(".from_left" in e["buffer"] for e in others)
            if ".from_right" in first["buffer"] and not alone:
                wrong.append(first)
    return wrong


def cfg_in_turn(trace: list[Event]) -> list[Event]:
    """Return the compute steps behind a message from another cfg branch: in one forward none needs the other's.

    The order is that of each rank's own events, not the clock's, so that a busy machine raises no alarm.
    """
    late = []
    heard: set[int] = set()
    for event in sorted(trace, key=lambda e: e["start"]):
        if event["op"] == "recv" and event["group"] == "cfg":
            heard.add(event["rank"])
        if event["op"] not in ("send", "recv") and event["rank"] in heard:
            late.append(event)
    return late


def traffic(trace: list[Event]) -> Counter[tuple[Any, ...]]:
    """Count every transfer and compute step of every rank, without times: equal for two runs of one program."""
    keys = ("rank", "op", "collective", "group", "axis", "step", "bytes", "peer", "shapes")
    return Counter(tuple(str(event[key]) for key in keys) for event in trace)


def traffic_changed(trace: list[Event], clean: list[Event]) -> int:
    """Count events that only one of two runs has."""
    ours = traffic(trace)
    theirs = traffic(clean)
    return sum(((ours - theirs) + (theirs - ours)).values())


def _axis(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis
