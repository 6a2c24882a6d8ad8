"""What the replays of a trace do to memory: they read what the last one left, write what others own, read what is gone.

A trace runs the same programs on the same addresses every time, whoever owns them by then:

    x --> [ mid = exp(x); y = mid + 1; free mid ]       captured: reads x, writes mid and y
    b = empty(...)                                      ttnn gives it mid's memory
    execute_trace                                       writes mid, and so b

Memory is compared by device, kind and range of addresses. What operations take and give back within one call is not
seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.finding import Finding, at
from tt_impl.harness.checks.reads import ALLOCATES, BEGINS, ENDS, FREES, is_output, read_by
from tt_impl.mock.log.events import Event, EventLog, TensorUse

_REPLAY = "ttnn.execute_trace"
_RELEASE = "ttnn.release_trace"
_UNSEEN = "UnseenValue"
"""The mock's error for memory whose value nobody knows, such as a tensor that a replay wrote over."""
_COUNTERS = frozenset({"ttnn.plus_one", "ttnn.experimental.slice_write"})
"""Besides those of caches, operations that are there to change a part of a tensor from call to call."""

Access = tuple[Event, TensorUse]
"""A call, and how it has the tensor."""


@dataclass
class _Trace:
    """A trace and what its replays touch, by buffer.

    Attributes:
        reads: what a replay reads before it has written it.
        writes: what it writes, with the last call that does.
        taken: memory that it only takes.
        guests: tensors allocated since the capture where it writes, each with the first of ``writes`` there.
        left: what the last replay wrote and nothing else has since, of what the next one reads.
        stale: what a replay has read that the one before it wrote, with that replay.
        used: what others have read since the first replay.
        replayed: whether it was.
    """

    begin: Event
    end: Event | None = None
    reads: dict[int, Access] = field(default_factory=dict)
    writes: dict[int, Access] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    guests: dict[int, tuple[Access, Access]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    stale: dict[int, Event] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    replayed: bool = False

    @property
    def captured(self) -> str:
        return f"the trace captured at {self.begin.where}"

    def add(self, event: Event) -> None:
        """Add a call of the capture."""
        keeps = keeps_state(event)
        for use in event.inputs if keeps else read_by(event):
            if use.buffer not in self.writes and use.buffer not in self.taken:
                self.reads.setdefault(use.buffer, (event, use))
        if event.op in ALLOCATES:
            self.taken |= {use.buffer for use in event.outputs}
            return
        for use in written(event):
            self.writes[use.buffer] = event, use


def keeps_state(event: Event) -> bool:
    """Whether an operation changes a part of what it writes, on purpose: a cache, a counter."""
    return "cache" in event.op or event.op in _COUNTERS


def written(event: Event) -> list[TensorUse]:
    """Return what a call writes: new results, tensors changed in place, memory given to it for results."""
    if event.error is not None or event.op in FREES:
        return []
    inputs = {use.buffer for use in event.inputs}
    changed = [use for use in event.inputs if use.buffer in event.written or (is_output(use) and event.collectives)]
    return changed + [use for use in event.outputs if use.buffer not in inputs]


class _Program:
    """The state of a program with traces, call by call."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._traces: dict[int, _Trace] = {}
        self._capturing: _Trace | None = None
        self.born: dict[int, Access] = {}
        self._lost: dict[int, tuple[Event, _Trace]] = {}
        self.all: list[_Trace] = []

    def follow(self) -> Iterator[Finding]:
        """Yield what is lost or gone; what is stale is known at the end, in ``all``."""
        for event in self._log.events:
            if event.op == BEGINS:
                self._capturing = _Trace(event)
            elif event.op == ENDS and self._capturing is not None:
                self._capture(event)
            elif event.op == _RELEASE:
                self._traces.pop(_number(event), None)
            elif event.op == _REPLAY:
                if (trace := self._traces.get(_number(event))) is not None:
                    yield from self._replay(event, trace)
            else:
                yield from self._call(event)

    def _capture(self, event: Event) -> None:
        trace = self._capturing
        assert trace is not None
        trace.end = event
        self._capturing = None
        self._traces[trace.begin.options.get("result", -1)] = trace
        self.all.append(trace)

    def _call(self, event: Event) -> Iterator[Finding]:
        inputs = {use.buffer for use in event.inputs}
        for use in event.outputs:
            if use.buffer not in inputs:
                self._bear(event, use)
        if self._capturing is not None:
            self._capturing.add(event)
            return
        changed = {use.buffer for use in written(event)}
        reads = list(event.inputs if event.error == _UNSEEN else read_by(event))
        yield from self._reads_lost(event, reads)
        for trace in self._traces.values():
            trace.left -= changed
            if trace.replayed:
                trace.used |= {use.buffer for use in reads} - changed
        self._forget(event, changed)

    def _bear(self, event: Event, use: TensorUse) -> None:
        self.born[use.buffer] = event, use
        for trace in self._traces.values():
            hosts = [access for access in trace.writes.values() if access[1].overlaps(use)]
            if hosts:
                trace.guests[use.buffer] = (event, use), hosts[0]

    def _forget(self, event: Event, changed: set[int]) -> None:
        for buffer in changed:
            self._lost.pop(buffer, None)
        for use in event.inputs if event.op in FREES else ():
            for trace in self._traces.values():
                trace.guests.pop(use.buffer, None)

    def _replay(self, event: Event, trace: _Trace) -> Iterator[Finding]:
        yield from self._gone(event, trace)
        yield from self._reads_lost(event, [use for _, use in trace.reads.values()])
        for buffer in trace.left:
            trace.stale.setdefault(buffer, event)
        trace.left = trace.reads.keys() & trace.writes.keys()
        for buffer in trace.writes:
            self._lost.pop(buffer, None)
        self._lost |= dict.fromkeys(trace.guests, (event, trace))
        trace.replayed = True
        for other in self._traces.values():
            if other is not trace:
                other.left -= trace.writes.keys()
                other.used |= trace.reads.keys()

    def _reads_lost(self, reader: Event, reads: list[TensorUse]) -> Iterator[Finding]:
        for use in reads:
            if use.buffer not in self._lost:
                continue
            replay, trace = self._lost[use.buffer]
            (allocation, guest), (writer, _) = trace.guests[use.buffer]
            yield Finding.of(
                "lost-under-trace", allocation,
                f"{allocation.op} allocates a tensor of shape {list(guest.shape)} at {_place(guest)} while "
                f"{trace.captured} lives, in memory that its {at(writer)} writes: {at(replay)} wrote over it before "
                f"{at(reader)} reads it. Allocate it before the capture, or release the trace.",
            )  # fmt: skip

    def _gone(self, event: Event, trace: _Trace) -> Iterator[Finding]:
        """Find inputs of a trace whose memory was given back, or to others, since its capture."""
        for buffer, (reader, use) in trace.reads.items():
            owner = self._owner(use, trace)
            _, whole = self.born.get(buffer, (reader, use))
            freed = event.allocated is not None and whole.place not in event.allocated
            if not freed and (owner is None or _takes_over(owner, use, trace)):
                continue
            made = f" of {at(self.born[buffer][0])}" if buffer in self.born else ""
            by = f" by {at(self._log.frees[buffer])}" if buffer in self._log.frees else ""
            now = "" if owner is None else f" and is that of {at(owner[0])} now"
            yield Finding.of(
                "lost-under-trace", event,
                f"{event.op} repeats {at(reader)} of {trace.captured}, which reads the memory{made} at {_place(use)}, "
                f"but since then it was given back{by}{now}: keep what a trace reads, and copy new values into it.",
            )  # fmt: skip

    def _owner(self, use: TensorUse, trace: _Trace) -> Access | None:
        """Return the tensor that was allocated last, since the capture began, on memory that a trace reads."""
        for event, other in reversed(self.born.values()):
            if event.number < trace.begin.number:
                return None
            if other.buffer != use.buffer and other.overlaps(use):
                return event, other
        return None


def _takes_over(owner: Access, use: TensorUse, trace: _Trace) -> bool:
    """Whether a tensor was allocated during the capture to be the trace's input from then on, at the same address."""
    event, other = owner
    alike = (other.place, other.shape, other.dtype, other.layout) == (use.place, use.shape, use.dtype, use.layout)
    return alike and trace.end is not None and event.number < trace.end.number


def _number(event: Event) -> int:
    """Return the number of the trace that a call was given."""
    return next((value for name, value in event.options.items() if name in ("trace_id", "1")), -1)


def _place(use: TensorUse) -> str:
    return f"address {use.address} of {use.memory}"


def traces(log: EventLog) -> Iterator[Finding]:
    """Find what traces overwrite that they read, or others do, and what they read that is gone."""
    program = _Program(log)
    yield from program.follow()
    for trace in program.all:
        for buffer, replay in trace.stale.items():
            yield _stale(program, trace, buffer, replay)


def _stale(program: _Program, trace: _Trace, buffer: int, replay: Event) -> Finding:
    reader, _ = trace.reads[buffer]
    writer, use = trace.writes[buffer]
    made = f" of {at(program.born[buffer][0])}" if buffer in program.born else ""
    if keeps_state(writer):
        advice = "That is what a cache or a counter is for."
    elif buffer in trace.used:
        advice = "That is right for a result that grows from replay to replay, but not for an input."
    else:
        advice = "Write it anew before each replay, or give the result a tensor of its own."
    reads = "reads" if reader is writer else f"has read by then, in {at(reader)}"
    return Finding.of(
        "trace-overwrites-input", writer,
        f"{writer.op} writes into the tensor{made} of shape {list(use.shape)}, which {trace.captured} {reads}: "
        f"{at(replay)} replays it upon what the replay before it left there. {advice}",
        NOTE if keeps_state(writer) or buffer in trace.used else ERROR,
    )  # fmt: skip
