"""Semaphores and buffers that a device may touch while another one that lags still needs them.

Each device runs the program in its order; a collective, a host read and ``ttnn.synchronize_device`` let devices know of
each other. The engine of :mod:`refsim.runtime.watch.hazards` is told, per device, what it uses and what others write:

    collective j of device A      writes memory and semaphores of B as soon as A comes to j,
                                  or, with a barrier semaphore, once all devices of the group have come to j
    A has ended a collective      so all devices of the group have begun it, and ended all before it
    a host read, a synchronise    so all its devices have ended all before it; so does a capture, or a blocking replay

Delays are not played through: what does not happen before something else may happen at the same time. Devices of an
axis do the same, so two of each axis stand for all. Memory is known by its address.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from refsim.runtime.watch.hazards import Use, find
from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.fabric import groups
from tt_impl.harness.checks.finding import Finding, at
from tt_impl.harness.checks.reads import ALLOCATES, HOST, does_again, read_by, succeeded, written_remotely
from tt_impl.mock.log.events import Event, EventLog, TensorUse

_TICKS = 32
"""Of the clock, per event: beginning, exchange, transfers, end, in this order and with room between."""
_BEGIN, _HEARD, _TELL, _KNOWN, _SEND, _ARRIVED, _END = range(1, 22, 3)
_SIGNALS = 0
_DATA = 1
_LOCAL = frozenset({"ring_attention"})
"""Collectives whose results are not written by others, but whose gathered inputs are."""

Place = tuple[str, int]
"""Memory of a device: its kind and address."""


def in_flight(log: EventLog) -> Iterator[Finding]:
    """Find uses of semaphores and buffers that nothing keeps apart on some device."""
    model = _Model(log)
    if not model.places:
        return
    seen = set()
    for hazard in find(model.logs()):
        first, second = sorted(hazard.steps)
        place = model.named[int(hazard.buffer.split()[1])]
        key = first, second, place[0] == "semaphore"
        if first < 0 or first == second or key in seen:
            continue
        seen.add(key)
        before = log.events[first]
        after = log.events[second]
        is_result = before.collectives and any(_place(use) == place for use in before.outputs)
        if not (is_result and does_again(log, before, after)):  # which would leave the same bytes there
            yield _finding(before, after, place)


def _finding(first: Event, second: Event, place: Place) -> Finding:
    kinds = [crossing["collective"] for event in (first, second) for crossing in event.collectives]
    attention = bool(first.collectives) and set(kinds) == {"ring_attention"}
    if place[0] == "semaphore":
        return Finding.of(
            "semaphore-in-flight", second,
            f"{second.op} signals semaphore {place[1]} while a device that lags may still wait for it in {at(first)}: "
            "take two sets in turn, pass barrier_semaphore, or synchronise in between.",
        )  # fmt: skip
    reads = any(_place(use) == place for use in read_by(first))
    uses = "gathers into" if first.collectives else "reads" if reads else "writes"
    return Finding.of(
        "buffer-in-use", second,
        f"{second.op} writes memory at {place[1]} of {place[0]} on other devices, one of which may lag and still be in "
        f"{at(first)}, which {uses} it: take two buffers in turn, pass barrier_semaphore, or synchronise in between.",
        # The lag must be most of an attention and the rest of the layer, or a device must still wait for the host.
        NOTE if attention or not first.inputs else ERROR,
    )  # fmt: skip


def twice(log: EventLog) -> Iterator[Finding]:
    """Find collectives that are given one semaphore where they need two."""
    for event in succeeded(log):
        semaphores = event.options.get("semaphores", [])
        if event.collectives and len(set(semaphores)) < len(semaphores):
            same = next(s for s in semaphores if semaphores.count(s) > 1)
            sentence = f"{event.op} is given semaphore {same} twice: it counts other signals in each, create another."
            yield Finding.of("semaphore-twice", event, sentence)


def _waits(event: Event) -> bool:
    """Tell whether the host waits for all devices.

    What a trace holds runs once ``end_trace_capture`` has written it to the devices, which waits for them.
    """
    blocks = event.op == "ttnn.execute_trace" and event.options.get("blocking", True) is not False
    return blocks or event.op in ("ttnn.synchronize_device", "ttnn.begin_trace_capture")


class _Model:
    """What each device, and the host as one more, uses and exchanges."""

    def __init__(self, log: EventLog) -> None:
        self.places = _shared_places(log)
        self.named = list(self.places)
        self._numbers = {place: i for i, place in enumerate(self.named)}
        self.devices = sorted({d for event in log.events for d in _corner(event)})
        self._rank = {device: rank for rank, device in enumerate(self.devices)}
        self._host = len(self.devices)
        self._uses: list[list[Use]] = [[] for _ in range(self._host + 1)]
        self._posted: dict[tuple[int, int], int] = {}
        if self.places:
            for rank in range(self._host):
                self._allocate(rank)
            for event in succeeded(log):
                self._add(event)

    def logs(self) -> list[dict[str, Any]]:
        """Return what each device and the host did, in the form of :mod:`refsim.runtime.watch.hazards`."""
        names = [[i, str(i)] for i in range(len(self.named))]
        in_order = (sorted(uses, key=lambda use: use.begin) for uses in self._uses)
        return [{"uses": [use.as_json() for use in uses], "names": names, "released": []} for uses in in_order]

    def _use(self, rank: int, event: Event | None, begin: int, end: int, writes: bool, **more: Any) -> None:
        number, op = (-1, "allocation") if event is None else (event.number, event.op)
        buffer = more.get("buffer")
        peer = more.get("peer")
        channel = more.get("channel", 0)
        start = more.get("posted", (number + 1) * _TICKS + begin)
        end += (number + 1) * _TICKS
        self._uses[rank].append(Use(writes, buffer, 0, 1, op, number, "", peer, channel, start, end))

    def _allocate(self, rank: int) -> None:
        for buffer in range(len(self.named)):
            self._use(rank, None, 1, 2, True, buffer=buffer)

    def _add(self, event: Event) -> None:
        ranks = self._ranks(event.devices)
        if _waits(event):
            self._exchange(event, list(range(self._host)), self._host)
        elif event.op in HOST and event.options.get("blocking", True) is not False:
            self._host_read(event, ranks)
        elif event.collectives:
            self._collective(event, ranks)
        else:
            self._local(event, ranks)

    def _ranks(self, devices: tuple[int, ...]) -> list[int]:
        return [self._rank[device] for device in devices if device in self._rank]

    def _message(self, event: Event, sender: int, receiver: int, begin: int, end: int) -> None:
        self._use(sender, event, begin, end, False, peer=receiver, channel=_SIGNALS)
        self._use(receiver, event, begin, end, True, peer=sender, channel=_SIGNALS)

    def _exchange(self, event: Event, ranks: list[int], hub: int) -> None:
        """Let everybody tell the hub that it has come here, and the hub tell everybody."""
        for rank in ranks:
            if rank != hub:
                self._message(event, rank, hub, _BEGIN, _HEARD)
                self._message(event, hub, rank, _TELL, _KNOWN)

    def _host_read(self, event: Event, ranks: list[int]) -> None:
        """Let all devices do what the host issues later only after the ones it reads from have come here."""
        self._local(event, ranks)
        for rank in ranks:
            self._message(event, rank, self._host, _SEND, _SEND + 1)
        for rank in range(self._host):
            self._message(event, self._host, rank, _SEND + 2, _ARRIVED)

    def _local(self, event: Event, ranks: list[int]) -> None:
        for use in read_by(event):
            self._touch(event, ranks, _place(use), False)
        for use in event.outputs if event.op not in ALLOCATES else ():
            if use.buffer in event.written or all(use.buffer != read.buffer for read in event.inputs):
                self._touch(event, ranks, _place(use), True)

    def _touch(self, event: Event, ranks: list[int], place: Place, writes: bool) -> None:
        if place not in self._numbers:
            return
        for rank in ranks:
            self._use(rank, event, _BEGIN, _SEND, writes, buffer=self._numbers[place])
            if writes:  # that nobody reads what is written is no concern here
                self._use(rank, event, _SEND, _SEND, False, buffer=self._numbers[place])

    def _collective(self, event: Event, ranks: list[int]) -> None:
        for use in read_by(event):
            self._touch(event, ranks, _place(use), False)
        for crossing in event.collectives:
            if crossing["collective"] == "point_to_point":
                continue
            for group in groups(event.mesh, event.devices, crossing["axis"]):
                members = self._ranks(group)
                if len(members) > 1:
                    self._exchange(event, members, members[0])
                    for place in _written(event):
                        if place in self._numbers:
                            self._remote(event, members, self._numbers[place])

    def _remote(self, event: Event, members: list[int], buffer: int) -> None:
        """Let each member write into the next one's memory, which that one needs until the collective's end."""
        channel = _DATA + buffer
        begin = _SEND if _has_barrier(event) else _BEGIN
        for writer, owner in zip(members, members[1:] + members[:1], strict=True):
            self._use(writer, event, begin, _ARRIVED, False, peer=owner, channel=channel)
            posted = {"posted": self._posted.get((owner, buffer), 4)}
            self._use(owner, event, _BEGIN, _ARRIVED, True, buffer=buffer, peer=writer, channel=channel, **posted)
            self._use(owner, event, _ARRIVED, _END, False, buffer=buffer)
            self._posted[owner, buffer] = (event.number + 1) * _TICKS + _BEGIN + 1


def _barriers(event: Event) -> list[int]:
    """Return the addresses of the semaphores by which devices wait for each other before they write."""
    values = [event.options.get(name) or [] for name in ("barrier_semaphore", "barrier_semaphores")]
    return [s for value in values for s in (value if isinstance(value, list) else [value])]


def _has_barrier(event: Event) -> bool:
    """Say whether devices wait for each other before they write: by a semaphore, or as the operation has its own."""
    return not event.options.get("semaphores") or bool(_barriers(event))


def _shared_places(log: EventLog) -> dict[Place, None]:
    """Find memory and semaphores that collectives write on other devices at once, and that are used more than once."""
    early: dict[Place, None] = {}
    used: dict[Place, int] = defaultdict(int)
    for event in succeeded(log):
        for place in _written(event) if event.collectives else ():
            used[place] += 1
            if not _has_barrier(event):
                early[place] = None
    return {place: None for place in early if place[0] != "semaphore" or used[place] > 1}


def _written(event: Event) -> list[Place]:
    """Return what a collective's other devices write on each device: the buffers it was given, else its results."""
    barriers = _barriers(event)
    signals = [("semaphore", s) for s in event.options.get("semaphores", ()) if s not in barriers]
    uses: list[TensorUse] = written_remotely(event)
    if not uses and not any(c["collective"] in _LOCAL or "within" in c for c in event.collectives):
        uses = event.outputs
    return list(dict.fromkeys(signals + [_place(use) for use in uses]))


def _place(use: TensorUse) -> Place:
    return use.memory, use.address


def _corner(event: Event) -> list[int]:
    """Return two devices of each axis of the event's mesh."""
    mesh = event.mesh
    devices = event.devices
    if len(mesh) != 2 or len(devices) != mesh[0] * mesh[1]:
        return list(devices[:2])
    return [devices[row * mesh[1] + column] for row in range(min(2, mesh[0])) for column in range(min(2, mesh[1]))]
