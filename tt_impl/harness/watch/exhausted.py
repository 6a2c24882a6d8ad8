"""What a mesh's memory held when ttnn had no more of it: noted at the call that was refused, with who owns what.

    call -> event log -> shadow -> Exhaustion -> ttnn
                                   (out of memory? ttnn's allocator is asked for its blocks, the log for their owners)

Bytes are those of one bank: a core of L1, a bank of DRAM. All devices of a mesh are allocated in lockstep, so a figure
of a mesh is that of each of its devices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import ttnn

from tt_impl.harness.watch.meter import meshes_of
from tt_impl.mock.log.events import EventLog
from tt_impl.trace.graph import bank_bytes
from tt_impl.trace.intercept import Invocation

NO_TENSOR = "(no tensor: circular buffers, what operations keep for themselves)"
MEMORIES = ("DRAM", "L1", "L1_SMALL", "TRACE")
_NO_BLOCK = re.compile(r"Not enough space to allocate (\d+) B (\w+) buffer across (\d+) banks.*?store (\d+) B")
_CLASH = re.compile(
    r"(circular|dataflow) buffers.*?clash with L1 buffers.*?L1 buffer allocated at (\d+) and .*? ends at (\d+)"
)
_TOO_MUCH = re.compile(r"Statically allocated (?:circular|dataflow) buffers.*? grow to (\d+) B .*? L1 size of (\d+) B")


@dataclass(frozen=True)
class Holder:
    """Memory that is taken: ``bytes`` of each bank, by a call of ``op`` in event number ``event``.

    ``used`` is the number of the last event with a tensor that lies there.
    """

    address: int
    bytes: int
    op: str
    where: str
    event: int
    used: int
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True)
class Block:
    """A piece of a bank, taken or free, in the order of addresses."""

    bytes: int
    holder: Holder | None


@dataclass
class MemoryState:
    """One kind of memory of a mesh, bytes of a bank.

    ``blocks`` are in the order of addresses; ``holders`` those that are taken.
    """

    banks: int
    bank_bytes: int
    allocated: int
    free: int
    largest_free: int
    blocks: list[Block] = field(default_factory=list)

    @property
    def holders(self) -> list[Holder]:
        return [block.holder for block in self.blocks if block.holder is not None]


@dataclass
class Exhausted:
    """A call that ttnn refused for want of memory.

    Attributes:
        event, op, where: the call.
        memory: the kind that was too little.
        asked: bytes in all banks, and ``asked_per_bank``; 0 where ttnn does not say.
        buffers_end: of a program whose circular buffers do not fit into L1, where they end; 0 otherwise.
        limit: where they would have to end: at the first tensor in L1, or where a core's L1 does.
        mesh: its shape.
        states: every kind of memory then, by name.
        programs: in ttnn's cache then.
    """

    event: int
    op: str
    where: str
    memory: str
    asked: int
    asked_per_bank: int
    buffers_end: int
    limit: int
    mesh: tuple[int, ...]
    states: dict[str, MemoryState]
    programs: int = 0


class Exhaustion:
    """A handler for :func:`tt_impl.trace.intercept.intercepted`; install it behind the event log.

    ``records`` has every refused call, also where the program goes on.
    """

    def __init__(self, log: EventLog) -> None:
        self.records: list[Exhausted] = []
        self._log = log

    def __call__(self, call: Invocation) -> Any:
        try:
            return call.proceed()
        except RuntimeError as error:
            if (what := asked_for(str(error))) is not None:
                self._note(call, *what)
            raise

    def _note(self, call: Invocation, memory: str, asked: tuple[int, int], program: tuple[int, int]) -> None:
        event = self._log.events[-1]
        if self.records and self.records[-1].event == event.number:
            return  # an operation may try twice
        meshes = meshes_of(call)
        if not meshes:
            return
        owners = _owners(self._log)
        states = {name: _state(meshes[0], name, owners) for name in MEMORIES}
        kinds = {name: state for name, state in states.items() if state.bank_bytes}
        shape = tuple(int(n) for n in meshes[0].shape)
        call_of = event.number, event.op, event.where
        record = Exhausted(*call_of, memory, *asked, *program, shape, kinds)
        record.programs = meshes[0].num_program_cache_entries()
        self.records.append(record)

    @property
    def ended(self) -> Exhausted | None:
        """The refused call whose error ended the program; None if none did."""
        ends = (record for record in reversed(self.records) if record.event in self._log.left_by_error)
        return next(ends, None)


def asked_for(message: str) -> tuple[str, tuple[int, int], tuple[int, int]] | None:
    """Read ttnn's message: kind of memory; bytes asked for in all and of each bank; end of a program and its limit."""
    text = " ".join(message.split())
    if (block := _NO_BLOCK.search(text)) is not None:
        return block[2], (int(block[1]), int(block[4])), (0, 0)
    if (clash := _CLASH.search(text)) is not None:
        return "L1", (0, 0), (int(clash[3]), int(clash[2]))
    if (grown := _TOO_MUCH.search(text)) is not None:
        return "L1", (0, 0), (int(grown[1]), int(grown[2]))
    return None


def _state(mesh: ttnn.MeshDevice, name: str, owners: dict[tuple[str, int], Holder]) -> MemoryState:
    """Ask ttnn's allocator for the blocks of a kind of memory; addresses of buffers tell where a bank begins."""
    kind = getattr(ttnn.BufferType, name)
    view = ttnn.get_memory_view(mesh, kind)
    state = MemoryState(
        view.num_banks,
        view.total_bytes_per_bank,
        view.total_bytes_allocated_per_bank,
        view.total_bytes_free_per_bank,
        view.largest_contiguous_bytes_free_per_bank,
    )
    table = [(int(b["address"]), int(b["size"]), b["allocated"] == "yes") for b in view.block_table]
    live = [b for b in ttnn._ttnn.reports.get_buffers(mesh) if b.buffer_type == kind and b.device_id == mesh.id()]
    taken = [address for address, _, is_taken in table if is_taken]
    base = max((b.address for b in live), default=0) - max(taken, default=0)
    sizes = {b.address: bank_bytes(b.max_size_per_bank) for b in live}
    for address, size, is_taken in sorted(table):
        holder = None
        if is_taken:
            place = base + address
            owner = owners.get((name, place))
            holder = owner or Holder(place, sizes.get(place, size), NO_TENSOR, "", -1, -1)
        state.blocks.append(Block(size, holder))
    return state


def _owners(log: EventLog) -> dict[tuple[str, int], Holder]:
    """Return who took memory last at each place, by the events of the program."""
    made: dict[int, tuple] = {}
    used: dict[int, int] = {}
    for event in log.events:
        for use in event.outputs:
            made.setdefault(use.buffer, (event, use))
        used |= dict.fromkeys((use.buffer for use in (*event.inputs, *event.outputs)), event.number)
    owners = {}
    for event in log.events:
        for address in _semaphores(event.options.get("result")) if event.op == "ttnn.create_global_semaphore" else ():
            owners["L1", address] = Holder(address, 0, event.op, event.where, event.number, event.number)
    for buffer, (event, use) in made.items():
        about = event.op, event.where, event.number, used[buffer], use.shape, use.dtype
        owners[use.place] = Holder(use.address, use.bank_bytes, *about)
    return owners


def _semaphores(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else [n for n in value or () if isinstance(n, int)]
