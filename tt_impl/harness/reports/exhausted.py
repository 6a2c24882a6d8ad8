"""Out of memory: which call, who owned what, how much was free in one piece, and what to free.

a bank   |####|....|######|..|###|......|      free bytes in three pieces: what is asked for fits in their sum, but
               <------------->                 only where the tensor between two of them is freed
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_impl.harness.watch.exhausted import Block, Exhausted, Holder, MemoryState
    from tt_impl.harness.watch.session import Session

TOP = 8
"""Owners that are named."""
BINARY_BYTES = 20 * 1024
BINARY_SOURCE = "an estimate: five kernels of 4 KiB a program; tt_dit measured 17 to 57 MB a device for whole models"
_MIB = 2**20
_KIB = 2**10
_SMALL = 1000
"""An owner of a smaller part of a bank is not printed."""
_PIECES = 4
"""So many tensors between free blocks are named."""


def of_session(session: Session) -> dict[str, Any]:
    """Return :func:`as_json` of a watched program that ended out of memory; empty if it did not."""
    ended = session.exhaustion.ended
    if ended is None:
        return {}
    from tt_impl.harness.checks.trace_region import living  # which imports ttnn

    return as_json(ended, [trace.sentence for trace in living(session.log, ended.event)])


def as_json(record: Exhausted, traces: Sequence[str]) -> dict[str, Any]:
    """Return everything as JSON values; bytes are those of one bank where a name ends in ``per_bank``.

    ``sentence`` says all in one; ``op``, ``where``, ``event``: the call; ``memory``: the kind that was too little;
    ``mesh``: its shape; ``asked_bytes``, ``asked_per_bank``; ``advice``: sentences on what to free; ``traces``: what
    each living one holds, as passed; ``kernel_binaries``: see :func:`kernel_binaries`; ``memories``: by kind
    ``banks``, ``bank_bytes``, ``allocated_per_bank``, ``free_per_bank``, ``largest_free_per_bank`` and ``owners`` by
    line, the :data:`TOP` largest: ``op``, ``where``, ``count``, ``bytes_per_bank``, ``shapes``, ``dtype``, ``left``
    (tensors that were used, but not since the line made its next one) and ``never`` (that nothing has used), each with
    ``count`` and ``bytes_per_bank``.
    """
    return {
        "sentence": sentence(record),
        "op": record.op,
        "where": record.where,
        "event": record.event,
        "memory": record.memory,
        "mesh": list(record.mesh),
        "asked_bytes": record.asked,
        "asked_per_bank": record.asked_per_bank,
        "advice": advice(record),
        "traces": list(traces),
        "kernel_binaries": kernel_binaries(record.programs),
        "memories": {name: _memory(state) for name, state in record.states.items()},
    }


def kernel_binaries(programs: int) -> dict[str, Any]:
    """Return what the kernels of ``programs`` take of DRAM, which a mock, whose kernels are empty, does not count."""
    return {"programs": programs, "bytes": programs * BINARY_BYTES, "source": BINARY_SOURCE}


def _memory(state: MemoryState) -> dict[str, Any]:
    return {
        "banks": state.banks,
        "bank_bytes": state.bank_bytes,
        "allocated_per_bank": state.allocated,
        "free_per_bank": state.free,
        "largest_free_per_bank": state.largest_free,
        "owners": [_owner(group) for group in by_line(state.holders)[:TOP]],
    }


def by_line(holders: Iterable[Holder]) -> list[list[Holder]]:
    """Join what one line of the program has taken, in its order; the largest owner first."""
    groups: dict[tuple[str, str], list[Holder]] = defaultdict(list)
    for holder in holders:
        groups[holder.op, holder.where].append(holder)
    joined = [sorted(group, key=lambda one: one.event) for group in groups.values()]
    return sorted(joined, key=lambda group: -_bytes(group))


def _owner(group: list[Holder]) -> dict[str, Any]:
    first = group[0]
    left, never = unused(group)
    return {
        "op": first.op,
        "where": first.where,
        "count": len(group),
        "bytes_per_bank": _bytes(group),
        "shapes": [list(shape) for shape in dict.fromkeys(holder.shape for holder in group if holder.shape)],
        "dtype": first.dtype,
        "left": {"count": len(left), "bytes_per_bank": _bytes(left)},
        "never": {"count": len(never), "bytes_per_bank": _bytes(never)},
    }


def unused(group: list[Holder]) -> tuple[list[Holder], list[Holder]]:
    """Find tensors of a line that were used, but not since it made its next one, and those that never were."""
    left = [holder for holder, later in pairwise(group) if holder.event < holder.used < later.event]
    return left, [holder for holder in group if 0 <= holder.used == holder.event]


def sentence(record: Exhausted) -> str:
    """Say on one line that and where the program ended out of memory, and by how much."""
    state = record.states.get(record.memory)
    where = f" at {record.where}" if record.where else ""
    start = f"this run ended out of memory, in {record.op}{where}: "
    devices = f"every device of the {'x'.join(map(str, record.mesh))} mesh"
    bank = "bank" if record.memory == "DRAM" else "core"
    if record.buffers_end:
        beside = f"; tensors have {_size(state.allocated, 'L1')} of L1" if state is not None and state.allocated else ""
        return (
            f"{start}the circular buffers of its program end at {_size(record.buffers_end, 'L1')} of a core's L1 and "
            f"would have to end at {_size(record.limit, 'L1')}{beside}, on {devices}."
        )
    if state is None:
        return f"{start}it asked for {_size(record.asked, record.memory)} of {record.memory}."
    return (
        f"{start}it asked for {_size(record.asked, record.memory)} of {record.memory}, "
        f"{_size(record.asked_per_bank, record.memory)} in each {bank} of {devices} ({state.banks} {bank}s); of "
        f"{_size(state.bank_bytes, record.memory)} a {bank} {_size(state.free, record.memory)} are free, the largest "
        f"free block has {_size(state.largest_free, record.memory)}."
    )


def advice(record: Exhausted) -> list[str]:
    """Say what to free, the surest first."""
    state = record.states.get(record.memory)
    if state is None:
        return []
    if record.buffers_end and not state.allocated:
        return [
            "smaller blocks or chunks in its program config, or more cores, make the buffers of the program smaller."
        ]
    bank = "bank" if record.memory == "DRAM" else "core"
    size = lambda bytes: f"{_size(bytes, record.memory)} of a {bank}"  # noqa: E731 - said three times
    text = []
    groups = by_line(state.holders)
    for group in [group for group in groups[:TOP] if _bytes(group) * _SMALL > state.bank_bytes]:
        left, never = unused(group)
        last = group[-1]
        if left:
            more = len(left) - 1
            enough = _enough(left, record.asked_per_bank)
            oldest = f"; the oldest {enough} would be enough, if they lie side by side" if enough < more else ""
            text.append(
                f"free {_tensors(len(left))} of {last.op} at {last.where} ({size(_bytes(left))}): they were used, but "
                f"nothing has used them since that line made its next one{oldest}."
            )
        elif len(never) > 1:
            text.append(
                f"{_tensors(len(never))} of {last.op} at {last.where} ({size(_bytes(never))}) have not been used by "
                "any operation so far; free those that nothing will use."
            )
    if record.asked_per_bank and state.free >= record.asked_per_bank > state.largest_free:
        text.insert(0, _joined(state, record, size))
    elif not text and groups:
        first = groups[0][-1]
        where = f" at {first.where}" if first.where else ""
        text.append(f"the largest owner is {first.op}{where} with {size(_bytes(groups[0]))}.")
    if record.memory == "L1" and groups:
        text.append("tensors need not be in L1: memory_config=ttnn.DRAM_MEMORY_CONFIG places them in DRAM.")
    return text


def _joined(state: MemoryState, record: Exhausted, size: Any) -> str:
    """Say that memory is in pieces, and which tensors between them to free."""
    window = cheapest(state.blocks, record.asked_per_bank)
    between = [block.holder for block in window if block.holder is not None]
    names = [f"{h.op} at {h.where} ({size(h.bytes)})" for h in between[:_PIECES] if h.where]
    more = len(between) - len(names)
    what = ", ".join([*names, *([f"{more} more"] if more else [])])
    pieces = sum(block.holder is None for block in state.blocks)
    return (
        f"{size(state.free)} are free, which is enough, but in {pieces} pieces. The least that joins what is asked for "
        f"is to free {_tensors(len(between))} between them: {what}. Allocate what lives long first, or all at once."
    )


def cheapest(blocks: list[Block], size: int) -> list[Block]:
    """Find neighbours that have ``size`` bytes together, with as few bytes taken as can be."""
    best: list[Block] = []
    cost = 0
    end = 0
    room = 0
    taken = 0
    for start, block in enumerate(blocks):
        while end < len(blocks) and room < size:
            room += blocks[end].bytes
            taken += blocks[end].bytes if blocks[end].holder is not None else 0
            end += 1
        if room < size:
            break
        if not best or taken < cost:
            best = blocks[start:end]
            cost = taken
        room -= block.bytes
        taken -= block.bytes if block.holder is not None else 0
    return best


def lines(memory: dict[str, Any]) -> list[str]:
    """Show what :func:`as_json` says in lines of text, the sentence first."""
    text = [memory["sentence"]]
    kinds = sorted(memory["memories"], key=lambda name: name != memory["memory"])
    for name in kinds:
        state = memory["memories"][name]
        seen = [owner for owner in state["owners"] if owner["bytes_per_bank"] * _SMALL > state["bank_bytes"]]
        if not seen or (name != memory["memory"] and name not in ("DRAM", "L1")):
            continue
        bank = "bank" if name == "DRAM" else "core"
        text.append(
            f"  {name} then: {_size(state['allocated_per_bank'], name)} of {_size(state['bank_bytes'], name)} a {bank} "
            f"taken, {_size(state['free_per_bank'], name)} free, largest free block "
            f"{_size(state['largest_free_per_bank'], name)}; owners by line:"
        )
        text += [f"    {_owner_line(owner, name)}" for owner in seen]
    text += [f"  what to free: {advice}" for advice in memory["advice"]]
    text += [f"  {trace}" for trace in memory["traces"]]
    binaries = memory["kernel_binaries"]
    if binaries["programs"]:
        text.append(
            f"  not in these figures: kernel binaries of {binaries['programs']} programs, about "
            f"{_size(binaries['bytes'], 'DRAM')} of DRAM on each device ({binaries['source']})."
        )
    return text


def _owner_line(owner: dict[str, Any], memory: str) -> str:
    shapes = owner["shapes"]
    shown = str(shapes[0]) if shapes else ""
    if len(shapes) > 1:
        shown = f"{shown} to {shapes[-1]}, {len(shapes)} shapes"
    where = f" at {owner['where']}" if owner["where"] else ""
    what = f": {_tensors(owner['count'])} {shown} {owner['dtype']}".rstrip() if shapes else ""
    return f"{_size(owner['bytes_per_bank'], memory):>12}  {owner['op']}{where}{what}"


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


def _enough(holders: list[Holder], size: int) -> int:
    """Return how many of the first have ``size`` bytes together."""
    room = 0
    for count, holder in enumerate(holders, 1):
        room += holder.bytes
        if room >= size:
            return count
    return len(holders)


def _bytes(holders: Iterable[Holder]) -> int:
    return sum(holder.bytes for holder in holders)


def _size(size: int, memory: str) -> str:
    return f"{size / _MIB:.1f} MiB" if memory == "DRAM" or size >= 10 * _MIB else f"{size / _KIB:.1f} KiB"
