"""What the commands of traces take of the trace region, which a mock never fills: an estimate, and what to set.

A device keeps the commands of every captured program in memory that was set aside when the mesh was opened
(``trace_region_size``, bytes of a device); ``ttnn.end_trace_capture`` ends with an error where it is too small. Where
none was set aside, which is the default, they go to the rest of DRAM (tt_metal/distributed/mesh_trace.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.finding import Finding
from tt_impl.harness.checks.reads import ALLOCATES, FREES, read_by
from tt_impl.mock.log.events import Event, EventLog

PROGRAM_BYTES = 12 * 1024
"""Of the commands of one program: kernel arguments of all cores, buffers, semaphores. An estimate, good to a factor of
two for programs on all cores: tt_dit sets 31 MB aside for Flux.1's transformer of 57 blocks, about 45 programs each."""
LEAST_BYTES = 2000
"""Of a program on a few cores: tt-metal's tests of all_to_all_dispatch capture 25 programs into 50,000 bytes."""
_UNSURE = 2
_STEP = 2**20


@dataclass
class LivingTrace:
    """A trace from its capture on: its programs, and the memory that its replays read and write.

    ``reads`` and ``writes`` are bytes of a bank by buffer.
    """

    begin: Event
    programs: int = 0
    reads: dict[int, int] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of its commands, on each device; an estimate."""
        return self.programs * PROGRAM_BYTES

    @property
    def sentence(self) -> str:
        reads = sum(self.reads.values()) / 2**20
        writes = sum(self.writes.values()) / 2**20
        return (
            f"the trace captured at {self.begin.where} holds {self.programs} programs (about "
            f"{self.bytes / 2**20:.1f} MiB of commands on each device, an estimate); its replays read {reads:.1f} MiB "
            f"of a bank (tensors: {len(self.reads)}) and write {writes:.1f} MiB ({len(self.writes)}), also where "
            f"tensors were given back."
        )


def living(log: EventLog, until: int | None = None) -> list[LivingTrace]:
    """Return the traces that were captured and not released, before event number ``until``."""
    return [trace for trace, end in _followed(log, until) if end is None]


def trace_region(log: EventLog) -> Iterator[Finding]:
    """Find captures for which the trace region is too small, with those that live beside them."""
    for event in log.events:
        region = event.options.get("trace_region_bytes")
        if event.op != "ttnn.begin_trace_capture" or not region:
            continue
        end = next((e.number for e in log.events if e.op == _END and e.number > event.number), None)
        traces = living(log, end)
        need = sum(trace.bytes for trace in traces)
        if need <= region or not traces:
            continue
        others = f", with the {len(traces) - 1} other traces that live then," if len(traces) > 1 else ""
        wanted = -(-need * _UNSURE // _STEP) * _STEP
        yield Finding.of(
            "trace-region", event,
            f"the trace of {traces[-1].programs} programs{others} takes about {need / 2**20:.1f} MiB of each device's "
            f"trace region (an estimate, good to a factor of {_UNSURE} for programs on all cores), which has "
            f"{region / 2**20:.1f} MiB: there ttnn.end_trace_capture fails. "
            f"Open the mesh with trace_region_size={wanted}, or release traces.",
            ERROR if sum(trace.programs for trace in traces) * LEAST_BYTES > region else NOTE,
        )  # fmt: skip


_END = "ttnn.end_trace_capture"


def _followed(log: EventLog, until: int | None) -> list[tuple[LivingTrace, Event | None]]:
    """Return every trace with the event that released it, if one has."""
    traces: dict[int, LivingTrace] = {}
    released: dict[int, Event] = {}
    capturing: LivingTrace | None = None
    for event in log.events if until is None else log.events[:until]:
        if event.op == "ttnn.begin_trace_capture":
            capturing = LivingTrace(event)
            traces[event.number] = capturing
        elif event.op == _END:
            capturing = None
        elif event.op == "ttnn.release_trace":
            number = next((value for name, value in event.options.items() if name in ("trace_id", "1")), -1)
            for start, trace in traces.items():
                if trace.begin.options.get("result") == number:
                    released.setdefault(start, event)
        elif capturing is not None:
            _add(capturing, event)
    return [(trace, released.get(start)) for start, trace in traces.items()]


def _add(trace: LivingTrace, event: Event) -> None:
    """Add a call of a capture; a view of an input is no program."""
    if event.op in ALLOCATES or event.op in FREES or event.error is not None:
        return
    inputs = {use.buffer for use in event.inputs}
    made = [use for use in event.outputs if use.buffer not in inputs]
    changed = [use for use in event.inputs if use.buffer in event.written]
    if not made and not changed and not event.collectives and event.outputs:
        return
    trace.programs += 1
    for use in read_by(event):
        if use.buffer not in trace.writes:
            trace.reads.setdefault(use.buffer, use.bank_bytes)
    trace.writes |= {use.buffer: use.bank_bytes for use in (*made, *changed)}
