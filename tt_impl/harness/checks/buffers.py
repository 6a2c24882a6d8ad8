"""Checks of what a program does with device memory, in its own order: too small, never written, freed, overwritten."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any

from tt_impl.harness.checks import ERROR, NOTE
from tt_impl.harness.checks.fabric import groups
from tt_impl.harness.checks.finding import Finding, at
from tt_impl.harness.checks.reads import (
    ALLOCATES,
    BEGINS,
    ENDS,
    FREES,
    HOST,
    RECEIVES,
    does_again,
    is_output,
    read_by,
    succeeded,
    written_remotely,
)
from tt_impl.mock.log.events import NEVER_WRITE, Event, EventLog, TensorUse
from tt_impl.mock.storage.errors import ShadowError


def too_small(log: EventLog) -> Iterator[Finding]:
    """Find buffers given to a gather or a reduce-scatter that cannot hold what it puts there.

    Calls that the mock refuses count: ttnn has taken them, and the rule did not fit the buffer's shape.
    """
    launched = (event for event in log.events if event.error in (None, ShadowError.__name__))
    for event, crossing in ((call, crossing) for call in launched for crossing in call.collectives):
        size = len(groups(event.mesh, event.devices, crossing["axis"])[0])
        for use in filter(is_output, event.inputs):
            needed, what = _needed(event, crossing, use, size)
            if use.bytes < needed and use.sharding is None:
                yield Finding.of(
                    "small-buffer", event,
                    f"{event.op} puts {needed} bytes {what} into {use.argument}, a {use.dtype} buffer of shape "
                    f"{list(use.shape)} that has {use.bytes} on each device: allocate it for the whole.",
                )  # fmt: skip


def same_buffer(log: EventLog) -> Iterator[Finding]:
    """Find collectives that are given one buffer for two results."""
    for event in log.events:
        first: dict[int, TensorUse] = {}
        for use in written_remotely(event):
            if (other := first.setdefault(use.buffer, use)) is not use:
                yield Finding.of(
                    "buffer-twice", event,
                    f"{event.op} is given one buffer as {other.argument} and {use.argument}: one result overwrites the "
                    "other, allocate a buffer for each.",
                )  # fmt: skip


def _needed(event: Event, crossing: dict[str, Any], use: TensorUse, size: int) -> tuple[int, str]:
    """Return the bytes that the collective writes into a buffer on each device, if that is known, and what they are."""
    part = event.inputs[0]
    kind = crossing["collective"]
    argument = use.argument.partition("[")[0]
    if event.op.startswith("ttnn.experimental.dit_fused_distributed"):
        return 0, ""  # statistics travel, not the input
    if kind == "all_gather" and argument.startswith("persistent_output"):
        if use.dtype == part.dtype and prod(use.shape) >= prod(part.shape) * size:
            return 0, ""  # the whole has less padding than its parts together where these do not fill their tiles
        return part.bytes * size, f"from {size} devices"
    if kind == "reduce_scatter" and argument == "persistent_output_buffers" and "within" not in crossing:
        if not use.argument.endswith("[0]"):
            return part.bytes // size, "of sums"
        if crossing.get("runs_as") == "Linear" or size == 2:
            return part.bytes * 2, "of sums on their way, in both directions"
        if "strided" in event.op:  # a ring of it holds one batch at a time
            return part.bytes // part.shape[0], "of sums on their way"
        return part.bytes, "of sums on their way"
    return 0, ""


def never_written(log: EventLog) -> Iterator[Finding]:
    """Find reads of memory that was allocated without values and that nothing has written since, or only in part.

    Of memory that is written in part, a cache for one, the rest may be masked: it counts if it reaches the result.
    A run that only compiles, of whose results the host reads none, may come before the first write.
    """
    empty: dict[int, Event] = {}
    in_part: dict[int, Event] = {}
    captured = _captured(log)
    last_written = {buffer: event.number for event in log.events for buffer in event.written}
    for event in log.events:
        reads = list(read_by(event))
        partial = {use.buffer: in_part[use.buffer] for use in reads if use.buffer in in_part and event.passes_nan_on}
        for use in reads:
            argument = f"argument {use.argument}"
            if use.buffer in empty and not event.op.startswith("ttnn.experimental.dit_fused_distributed"):
                written_later = last_written.get(use.buffer, -1) > event.number
                if written_later and not _reaches_host(log, event, use.buffer, captured):
                    continue
                yield Finding.of(
                    "never-written", event,
                    f"{event.op} reads {argument}, memory that {at(empty[use.buffer])} allocated and "
                    "nothing has written: write it first, or take ttnn.zeros.", NOTE if event.op in HOST else ERROR,
                )  # fmt: skip
            elif use.buffer in partial and event.op not in NEVER_WRITE and use.buffer not in event.written:
                yield Finding.of(
                    "never-written", event,
                    f"{event.op} reads of {argument} what nothing has written, too: {at(partial[use.buffer])} "
                    "allocated it, and it was written in part since; read only that part, or take ttnn.zeros.",
                )  # fmt: skip
        inputs = {use.buffer for use in event.inputs}
        for buffer in inputs if event.op == RECEIVES else event.written:
            if buffer in empty:
                in_part[buffer] = empty.pop(buffer)
        for use in event.outputs:
            if event.op in ALLOCATES and log.sees_writes:
                empty[use.buffer] = event
            elif use.buffer not in inputs:
                empty.pop(use.buffer, None)
                in_part.pop(use.buffer, None)
                if partial and event.op in NEVER_WRITE:
                    in_part[use.buffer] = next(iter(partial.values()))


def _captured(log: EventLog) -> set[int]:
    """Return the numbers of the calls that a trace records, which run at its replays only."""
    inside = False
    numbers = set()
    for event in log.events:
        inside = event.op == BEGINS or (inside and event.op != ENDS)
        if inside:
            numbers.add(event.number)
    return numbers


def _reaches_host(log: EventLog, first: Event, buffer: int, captured: set[int]) -> bool:
    """Tell whether the host reads what ``first`` and later calls make of ``buffer`` as it is before its next write."""
    made_of_it = {buffer}
    for event in log.events[first.number :]:
        if event.number in captured:
            continue
        reads = any(use.buffer in made_of_it for use in read_by(event))
        if reads and event.op in HOST:
            return True
        changed = {*event.written, *(use.buffer for use in event.outputs)}
        made_of_it = made_of_it | changed if reads else made_of_it - changed
        if not made_of_it:
            break
    return False


def freed(log: EventLog) -> Iterator[Finding]:
    """Find uses of tensors that were deallocated; ttnn lets one be deallocated again, which does nothing."""
    for event in log.events:
        for use in event.dead:
            where = f" by {at(log.frees[use.buffer])}" if use.buffer in log.frees else ""
            what = f"argument {use.argument}, a tensor of shape {list(use.shape)} that was deallocated{where}"
            if event.op in FREES:
                yield Finding.of("freed", event, f"{event.op} is given {what}: leave it out.", NOTE)
            else:
                yield Finding.of("freed", event, f"{event.op} uses {what}: deallocate it after its last use.")


def stale(log: EventLog) -> Iterator[Finding]:
    """Find reads of a collective's result after a later collective has written the same persistent buffer."""
    writes: dict[int, list[int]] = defaultdict(list)
    for event in log.events:
        for use in read_by(event):
            numbers = writes.get(use.buffer, [])
            meant = bisect_right(numbers, use.made) - 1
            if use.made >= 0 and 0 <= meant < len(numbers) - 1:
                first = log.events[numbers[meant]]
                last = log.events[numbers[-1]]
                if does_again(log, first, last):
                    continue
                yield Finding.of(
                    "stale-read", event,
                    f"{event.op} reads as argument {use.argument} the result of {at(first)}, but {at(last)} has since "
                    "written the same persistent buffer: read it before, or give the later call another buffer.",
                )  # fmt: skip
        results = {use.buffer for use in event.outputs}
        for use in written_remotely(event):
            if use.buffer in results:
                writes[use.buffer].append(event.number)


def unused(log: EventLog) -> Iterator[Finding]:
    """Find collectives of whose results nothing is used."""
    made: dict[int, Event] = {}
    unread: dict[int, Event] = {}
    for event in succeeded(log):
        only_written = [use.buffer for use in written_remotely(event)]
        for use in event.inputs:
            if use.buffer in made and use.buffer not in only_written and event.op not in FREES:
                unread.pop(made[use.buffer].number, None)
        if event.collectives:
            unread[event.number] = event
            made |= {use.buffer: event for use in event.outputs}
    for event in unread.values():
        sentence = f"nothing reads the result of {event.op}: leave it out, or use the result."
        yield Finding.of("unused-result", event, sentence, NOTE)
