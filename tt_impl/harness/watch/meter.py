"""What every call of a program takes: memory by ttnn's own allocator, and its programs on the cores.

    call -> event log -> ... -> shadow -> Meter -> ttnn
                                          (a capture of ttnn's graph around the call; then, once for every different
                                          program, a second one without dispatch for its circular buffers and cores)

Bytes are those of one bank: a core of L1, a bank of DRAM. All devices of a mesh are allocated in lockstep, so a figure
of a mesh is that of each of its devices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import ttnn

from tt_impl.mock.log.events import EventLog
from tt_impl.trace.collectives import links_of, topology_of
from tt_impl.trace.graph import ONCE, Change, DeviceOp, Graph, bank_bytes, build, capturing, read, settings_of
from tt_impl.trace.intercept import Invocation, tensors_in

UNSEEN = "(memory that no operation took)"
"""Owner of what was allocated between two calls: global circular buffers, for one."""
BEFORE = "(memory taken before the program was watched)"
_VIEWS = {"DRAM": ttnn.BufferType.DRAM, "L1": ttnn.BufferType.L1, "L1_SMALL": ttnn.BufferType.L1_SMALL}

Place = tuple[int, str, int]
"""Mesh, kind of memory, address."""


@dataclass(frozen=True)
class Allocation:
    """Memory and who took it: the operation and the line of the user's code, in event number ``event``."""

    mesh: int
    memory: str
    address: int
    bytes: int
    op: str
    where: str
    event: int
    shape: tuple[int, ...] = ()
    dtype: str = ""

    @property
    def place(self) -> Place:
        return self.mesh, self.memory, self.address

    @property
    def owner(self) -> tuple:
        """What all allocations of one line have in common."""
        return self.op, self.where, self.memory, self.shape, self.dtype, self.bytes


def follow(live: dict[Place, Allocation], sign: int, allocation: Allocation) -> None:
    """Change what is allocated, by place: one more (``sign`` 1), or one less (-1)."""
    if sign > 0:
        live[allocation.place] = allocation
    else:
        live.pop(allocation.place, None)


@dataclass(frozen=True)
class Level:
    """What ttnn's allocator says of one kind of memory of a mesh after a call."""

    event: int
    mesh: int
    memory: str
    allocated: int
    free: int
    largest_free: int


@dataclass
class Launch:
    """A device operation of a call on ``mesh``.

    ``layout`` is the same as ttnn builds it without a program of its cache, with circular buffers and cores; None where
    it could not be asked for. ``options``: what of the call's arguments decides how fast it is, see :func:`_options`.
    """

    event: int
    mesh: int
    op: str
    where: str
    program: DeviceOp
    layout: DeviceOp | None
    options: dict[str, Any] = field(default_factory=dict)


class Meter:
    """A handler for :func:`tt_impl.trace.intercept.intercepted`; install it after all others, next to ttnn.

    Args:
        log: the event log, which has noted a call before it comes here.

    Attributes:
        history: memory taken (1) and given back (-1), in order, with the event in which that showed.
        levels: after every call, by ttnn's allocator.
        launches: every device operation.
        meshes: by id of a mesh: ids of its devices, shape, architecture, cores, bytes and number of banks.
        marks: places in ``history`` where iterations ended.
        programs: in ttnn's cache, the most of a mesh.
        calls: number, what was called from where on which shapes, place in ``history`` before it.
    """

    def __init__(self, log: EventLog) -> None:
        self.history: list[tuple[int, int, Allocation]] = []
        self.levels: list[Level] = []
        self.launches: list[Launch] = []
        self.meshes: dict[int, dict[str, Any]] = {}
        self.marks: list[int] = []
        self.calls: list[tuple[int, tuple, int]] = []
        self.programs = 0
        self._log = log
        self._live: dict[Place, Allocation] = {}
        self._sums: Counter[tuple[int, str]] = Counter()
        self._layouts: dict[tuple, list[DeviceOp] | None] = {}
        self._pending_marks = 0

    def iteration(self) -> None:
        """Note that an iteration of the program ends here."""
        self._pending_marks += 1

    def finish(self) -> None:
        """Place the marks that no further call has placed."""
        self.marks += [len(self.history)] * self._pending_marks
        self._pending_marks = 0

    def uses(self) -> dict[tuple[str, int], list[int]]:
        """Return by kind of memory and address the numbers of the events with a tensor that begins there."""
        uses: dict[tuple[str, int], list[int]] = defaultdict(list)
        for event in self._log.events:
            for place in {use.place for use in (*event.inputs, *event.outputs)}:
                uses[place].append(event.number)
        return uses

    def __call__(self, call: Invocation) -> Any:
        meshes = meshes_of(call)
        if not meshes:
            return call.proceed()
        event = self._log.events[-1]
        number = event.number
        op = event.op
        where = event.where
        for mesh in meshes:
            self._agree(mesh, number, where)
        self.finish()
        self.calls.append((number, (op, where, _shapes(call)), len(self.history)))
        try:
            with capturing(dispatch=True) as nodes:
                result = call.proceed()
        finally:
            graph = read(nodes, settings_of(call))
            for change in graph.changes:
                self._change(change, number, op, where)
            for mesh in meshes:
                self._agree(mesh, number, where)
                self._note_levels(mesh, number)
            self.programs = max(self.programs, *(mesh.num_program_cache_entries() for mesh in meshes))
        self._note_launches(call, graph, meshes[0].id())
        return result

    def _change(self, change: Change, number: int, op: str, where: str) -> None:
        place = change.mesh, change.memory, change.address
        if change.sign > 0:
            self._take(Allocation(*place, change.bytes, op, where, number, change.shape, change.dtype), number)
        elif place in self._live:
            self._note(-1, number, self._live[place])

    def _take(self, allocation: Allocation, number: int) -> None:
        if allocation.place in self._live:  # given back where nobody looked
            self._note(-1, number, self._live[allocation.place])
        self._note(1, number, allocation)

    def _note(self, sign: int, number: int, allocation: Allocation) -> None:
        follow(self._live, sign, allocation)
        self._sums[allocation.place[:2]] += sign * allocation.bytes
        self.history.append((sign, number, allocation))

    def _agree(self, mesh: ttnn.MeshDevice, number: int, where: str) -> None:
        """Take over from ttnn what was given back (by Python, mostly) or allocated since the last look."""
        key = mesh.id()
        owner = (UNSEEN, where) if key in self.meshes else (BEFORE, "")
        if key not in self.meshes:
            self.meshes[key] = _described(mesh)
        views = {name: ttnn.get_memory_view(mesh, kind).total_bytes_allocated_per_bank for name, kind in _VIEWS.items()}
        if all(self._sums[key, name] == size for name, size in views.items()):
            return
        there: dict[Place, int] = {}
        for buffer in ttnn._ttnn.reports.get_buffers(mesh):
            if buffer.device_id == key:
                there[key, buffer.buffer_type.name, buffer.address] = bank_bytes(buffer.max_size_per_bank)
        for place in [p for p in self._live if p[0] == key and p not in there]:
            self._note(-1, number, self._live[place])
        for place in sorted(there.keys() - self._live.keys()):  # ttnn lists buffers in no order
            self._take(Allocation(*place, there[place], *owner, number), number)

    def _note_levels(self, mesh: ttnn.MeshDevice, number: int) -> None:
        for name, kind in _VIEWS.items():
            view = ttnn.get_memory_view(mesh, kind)
            figures = (
                view.total_bytes_allocated_per_bank,
                view.total_bytes_free_per_bank,
                view.largest_contiguous_bytes_free_per_bank,
            )
            if name != "L1_SMALL" or figures[0]:
                self.levels.append(Level(number, mesh.id(), name, *figures))

    def _note_launches(self, call: Invocation, graph: Graph, mesh: int) -> None:
        if not graph.ops:
            return
        event = self._log.events[-1]
        for program, layout in zip(graph.ops, self._layouts_of(call, graph.ops), strict=True):
            self.launches.append(Launch(event.number, mesh, event.op, event.where, program, layout, _options(call)))

    def _layouts_of(self, call: Invocation, ops: list[DeviceOp]) -> list[DeviceOp] | list[None]:
        """Return circular buffers and cores, from a second call that ttnn builds but neither runs nor gives memory."""
        key = tuple(op.key for op in ops)
        if key not in self._layouts:
            self._layouts[key] = _built(call, len(ops))
        return self._layouts[key] or [None] * len(ops)


def _built(call: Invocation, count: int) -> list[DeviceOp] | None:
    if call.name in ONCE or not all(tensor.is_allocated() for tensor in call.inputs):
        return None
    try:
        ops = build(call).ops
    except Exception:  # the call itself went well; what it takes besides is then unknown, and said to be
        return None
    return ops if len(ops) == count else None


def _options(call: Invocation) -> dict[str, Any]:
    """Return ``config`` (ttnn's text of it), ``axis``, ``links``, ``ring`` and ``causal``; None if not given."""
    named = call.kwargs
    config = named.get("program_config", named.get("config"))
    topology = topology_of(named)
    return {
        "config": None if config is None else repr(config),
        "axis": named.get("cluster_axis"),
        "links": links_of(named),
        "ring": None if topology is None else topology == "Ring",
        "causal": named.get("is_causal"),
    }


def _shapes(call: Invocation) -> tuple:
    return tuple(tuple(tensor.shape) for tensor in tensors_in((call.args, call.kwargs)))


def meshes_of(call: Invocation) -> list[ttnn.MeshDevice]:
    """Return the open meshes among the arguments, and those that hold their tensors, each once."""
    meshes = [*call.meshes, *(tensor.device() for tensor in call.inputs if tensor.is_allocated())]
    return list({mesh.id(): mesh for mesh in meshes}.values())


def _described(mesh: ttnn.MeshDevice) -> dict[str, Any]:
    grid = mesh.compute_with_storage_grid_size()
    view = ttnn.get_memory_view(mesh, ttnn.BufferType.DRAM)
    info = ttnn._ttnn.reports.get_device_info(mesh)
    return {
        "devices": [int(i) for i in mesh.get_device_ids()],
        "shape": [int(n) for n in mesh.shape],
        "arch": mesh.arch().name.lower(),
        "grid": [grid.x, grid.y],
        "dram_banks": view.num_banks,
        "dram_bank_bytes": view.total_bytes_per_bank,
        "l1_banks": info.l1_num_banks,
        "l1_bank_bytes": info.l1_bank_size,
        "info": {name: getattr(info, name) for name in dir(info) if not name.startswith("_")},
    }
