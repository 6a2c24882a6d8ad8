"""The event trace: one record per transfer and per compute step, with start and end on a clock all ranks share."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from refsim.files import output
from refsim.runtime.group import Group
from refsim.runtime.host_memory import own_private_bytes
from refsim.runtime.watch.activity import Activity


@dataclass
class Event:
    """One operation of one rank.

    Attributes:
        op: ``send``, ``recv``, or the name of a compute step such as ``sdpa`` or ``linear``.
        collective: path of the collective the event belongs to, outermost first (``all_reduce/all_gather``).
        step: step of that collective or scheme; -1 where there are no steps.
        shapes, dtype: of the tensors involved.
        bytes: moved by a send or recv; 0 for compute.
        buffer: id of the device buffer touched, ``-`` if it is not a named one.
        group, axis, topology, peer: where a transfer goes; ``peer`` is a global rank.
        start, end: seconds of the machine's monotonic clock; a transfer runs from post to completed wait.
        where: part of the model and module in it, ``block 17 / attn.to_q``.
        channel: of a transfer: the nth receive of a channel between two ranks takes what its nth send gave.
        memory: bytes that the rank's process has allocated by ``start``, None where the system does not say.
    """

    rank: int
    step: int
    op: str
    shapes: list[list[int]]
    dtype: str
    bytes: int
    buffer: str
    start: float
    end: float = 0.0
    collective: str = ""
    group: str = ""
    axis: Any = None
    dim: int | None = None
    topology: str | None = None
    peer: int | None = None
    where: str = ""
    channel: int | None = None
    memory: int | None = None


@dataclass
class Trace:
    """The events of one rank. Transfers are always counted; events are kept only if ``keep``."""

    rank: int
    keep: bool = False
    events: list[Event] = field(default_factory=list)
    sent: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def begin(
        self,
        activity: Activity,
        *tensors: Tensor,
        buffer: str = "-",
        group: Group | None = None,
        where: Callable[[], str] = str,
        channel: int = 0,
    ) -> Event | None:
        """Open the event of an activity on ``tensors``; a transfer names its ``group``. None if no events are kept.

        ``where`` is asked for the part of the model and the module in it, if events are kept.
        """
        moved = 0
        if group is not None:
            moved = sum(t.numel() * t.element_size() for t in tensors)
            if activity.what == "send":
                self.sent[activity.collective, group.name] += moved
        if not self.keep:
            return None
        event = Event(
            rank=self.rank,
            step=activity.step,
            op=activity.what,
            shapes=[list(t.shape) for t in tensors],
            dtype=str(tensors[0].dtype).removeprefix("torch."),
            bytes=moved,
            buffer=buffer,
            memory=own_private_bytes(),
            start=time.monotonic(),  # after all that the trace itself takes time for
            collective=activity.collective,
            where=where(),
        )
        if group is not None:
            event.group = group.name
            event.axis = group.axis
            event.peer = activity.peer
            event.channel = channel
            event.topology = group.topology.value if group.topology else None
        self.events.append(event)
        return event

    @staticmethod
    def end(event: Event | None) -> None:
        """Close an event that :meth:`begin` opened."""
        if event is not None:
            event.end = time.monotonic()

    def bytes_by_collective(self) -> dict[str, int]:
        """Return the bytes this rank sent, keyed ``collective@group``."""
        return {f"{name}@{group}": n for (name, group), n in self.sent.items()}

    def as_json(self) -> list[dict[str, Any]]:
        return [vars(e) for e in self.events]


def write_jsonl(events: Iterable[dict[str, Any]], path: Path) -> None:
    """Write the events of all ranks, one JSON object a line, ordered by start."""
    ordered = sorted(events, key=lambda e: (e["start"], e["rank"]))
    output.write(path, lambda f: f.writelines(json.dumps(event).encode() + b"\n" for event in ordered), "--trace")
