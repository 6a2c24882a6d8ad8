"""Checks that compare devices: replicas that are none, and submeshes that do not do the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tt_impl.harness.checks import NOTE
from tt_impl.harness.checks.finding import Finding, at
from tt_impl.harness.checks.reads import read_by, succeeded
from tt_impl.mock.log.events import COPIES_TO_DEVICE, Event, EventLog

_OF_EACH_DEVICE = frozenset(
    {"all_to_all_combine", "all_to_all_dispatch", "neighbor_pad", "point_to_point", "slice_reshard"}
)
"""Collectives that leave every device values of its own, whatever ttnn's topology of the result says."""


def uneven_replicas(log: EventLog) -> Iterator[Finding]:
    """Find reads to the host of what ttnn calls replicas although devices hold different values.

    Memory that the program itself fills with parts, of a host tensor that is cut, is of replicas in name only, and so
    is what is made of it until a collective.
    """
    parts = _parts(log)
    for event in log.events:
        if event.op in COPIES_TO_DEVICE:
            continue
        made = event.inputs[0].made if event.uneven else -1
        if made >= 0 and any(c["collective"] in _OF_EACH_DEVICE for c in log.events[made].collectives):
            continue
        for axis in set(event.uneven) - parts.get(event.inputs[0].buffer, set()) if event.uneven else ():
            yield Finding.of(
                "uneven-replicas", event,
                f"{event.op} reads a tensor of shape {list(event.inputs[0].shape)} as replicated along axis {axis}, "
                "but its devices hold different values: a collective along that axis is missing before.",
            )  # fmt: skip


def _parts(log: EventLog) -> dict[int, set[int]]:
    """Return buffers that hold parts by the program's own word, with the axes: what it copied there, and results of it.

    Calls of a trace are recorded before the memory that they read is written, so all are looked at twice.
    """
    axes: dict[int, set[int]] = {}
    for event in [*log.events, *log.events]:
        if event.op in COPIES_TO_DEVICE:
            along = set(event.uneven)
        else:
            along = set().union(*(axes.get(use.buffer, ()) for use in read_by(event)))
            along -= {crossing["axis"] for crossing in event.collectives}
        for buffer in {*event.written, *(use.buffer for use in event.outputs)} if along else ():
            axes[buffer] = along
    return axes


def submeshes_differ(log: EventLog) -> Iterator[Finding]:
    """Find the first collective in which submeshes part that began with the same ones."""
    by_mesh: dict[tuple[int, ...], list[Event]] = {}
    for event in succeeded(log):
        if event.collectives:
            by_mesh.setdefault(event.devices, []).append(event)
    for (one, first), (other, second) in itertools.combinations(by_mesh.items(), 2):
        if set(one) & set(other) or first[0].mesh != second[0].mesh or _does(first[0]) != _does(second[0]):
            continue
        for left, right in itertools.zip_longest(first, second):
            if _does(left) != _does(right):
                event = left or right
                others = at(right) if left and right else "nothing more"
                yield Finding.of(
                    "submeshes-differ", event,
                    f"{event.op} on devices {list(event.devices)} stands where the other submesh "
                    f"({list(other if left else one)}) has {others}: equal branches do the same collectives.",
                    NOTE,
                )  # fmt: skip
                break


def _does(event: Event | None) -> tuple:
    """Return what makes two collectives the same: operation, exchanges, shapes; nothing for none."""
    if event is None:
        return ()
    crossings = tuple((c["collective"], c["axis"], c["bytes"]) for c in event.collectives)
    return event.op, crossings, tuple(use.shape for use in event.inputs)
