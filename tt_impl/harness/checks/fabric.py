"""Checks of collectives against the wires of the cluster: rings that are none, too many links, devices far apart.

A ring over devices that close none is demoted to a line by ttnn 0.81 (``get_usable_topology``); ttnn before it, and
operations that do not ask it, take the ring as asked for and hang, or are refused for want of a route.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.finding import Finding
from tt_impl.harness.checks.reads import crossings
from tt_impl.mock.log.events import Event, EventLog
from tt_impl.run.installed import CLUSTER_DESCRIPTOR
from tt_impl.trace.collectives import RING_BY_DEFAULT

Links = Mapping[frozenset[int], int]
"""How many Ethernet links two devices have, by their ids."""

_FALLS_BACK = 2
"""On an axis of two devices ttnn takes a line, whatever is asked for."""


def cluster_links() -> Links | None:
    """Read the links of the mock cluster that this process has opened; None if it has not opened one."""
    path = os.environ.get(CLUSTER_DESCRIPTOR)
    if not path or not Path(path).is_file():
        return None
    import yaml

    described = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    pairs = described.get("ethernet_connections") or ()
    return Counter(frozenset(end["chip"] for end in pair) for pair in pairs)


def groups(mesh: tuple[int, ...], devices: tuple[int, ...], axis: int | None) -> list[tuple[int, ...]]:
    """Group the ids of devices that communicate along an axis of a mesh, in its order; all of them without an axis."""
    if axis is None or len(mesh) != 2 or len(devices) != mesh[0] * mesh[1]:
        return [devices]
    columns = mesh[1]
    rows = [devices[i : i + columns] for i in range(0, len(devices), columns)]
    return rows if axis % 2 else list(zip(*rows, strict=True))


def wires(log: EventLog, links: Links | None) -> Iterator[Finding]:
    """Find what the wires of the cluster cannot carry; nothing where they are not known."""
    for event, crossing in crossings(log) if links is not None else ():
        yield from _crossing(event, crossing, links)


def _crossing(event: Event, crossing: dict[str, Any], links: Links) -> Iterator[Finding]:
    if crossing["collective"] in ("point_to_point", "broadcast"):
        return
    axis = crossing["axis"]
    wanted = crossing["links"]
    if axis is None and 1 not in event.mesh:
        return  # in which order a whole 2-D mesh is walked is the operation's business
    members = groups(event.mesh, event.devices, axis)
    if len(members[0]) < 2:
        return
    along = "over all devices" if axis is None else f"along axis {axis}"
    pairs = [pair for group in members for pair in itertools.pairwise(group)]
    counts = [links.get(frozenset(pair), 0) for pair in pairs]
    if 0 in counts:
        loose = pairs[counts.index(0)]
        yield Finding.of(
            "not-neighbours", event,
            f"{event.op} {along} passes data from device {loose[0]} to device {loose[1]}, which have no link: open the "
            "mesh, or cut the submesh, so that neighbours of the axis are wired.", NOTE,
        )  # fmt: skip
        return
    if isinstance(wanted, int) and wanted > min(counts):
        yield Finding.of(
            "too-many-links", event,
            f"{event.op} {along} asks for num_links={wanted}, but neighbours have {min(counts)}: pass at most that.",
        )  # fmt: skip
    topology = crossing["topology"] or ("Ring" if event.op in RING_BY_DEFAULT else None)
    open_ends = [(group[-1], group[0]) for group in members if not links.get(frozenset((group[-1], group[0])))]
    if topology == "Ring" and len(members[0]) > _FALLS_BACK and open_ends:
        last, first = open_ends[0]
        default = "" if crossing["topology"] else ", the default of this operation,"
        demoted = ", as this ttnn does by itself" if crossing.get("runs_as") == "Linear" else ""
        yield Finding.of(
            "ring-without-link", event,
            f"{event.op} {along} is a ring by topology=Ring{default} but device {last} has no link back to device "
            f"{first}: pass topology=ttnn.Topology.Linear{demoted}.", NOTE if default and demoted else ERROR,
        )  # fmt: skip
