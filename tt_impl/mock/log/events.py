"""The events of a program: every operation with its buffers, options and collectives, and the user's line that made it.

    user's code --> EventLog (notes) --> other handlers, ttnn

Notes are taken from outside the call, so an operation is seen as the program wrote it: a read to the host has the
device tensor it reads. A buffer is known by an id that ttnn never gives twice and that views share.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import ttnn

from refsim.base.errors import RefsimError
from tt_impl.mock.log.arguments import options_of, plain
from tt_impl.mock.storage.errors import ShadowError
from tt_impl.mock.storage.padding import PaddingRead
from tt_impl.mock.storage.replicas import cut_axes, placements_of, uneven_axes
from tt_impl.mock.storage.values import ProgramValues
from tt_impl.run import cluster
from tt_impl.trace.buffers import address_of, buffer_of
from tt_impl.trace.collectives import Semaphore, arguments, crossings
from tt_impl.trace.expected import error_is_expected
from tt_impl.trace.intercept import Invocation, on_device, tensors_at
from tt_impl.trace.lines import user_line

NEVER_WRITE = frozenset(
    f"ttnn.{name}"
    for name in """
    clone concat expand experimental.view fill_implicit_tile_padding interleaved_to_sharded move pad permute reallocate
    repeat reshape reshape_on_device reshard sharded_to_interleaved slice squeeze Tensor.reshape Tensor.to tilize
    tilize_with_val_padding to_device to_dtype to_layout to_memory_config transpose typecast unsqueeze
    unsqueeze_to_4D untilize untilize_with_unpadding view
    """.split()
)
"""Operations whose result may be their input, or a view of it, without being written."""
_READS = frozenset(f"ttnn.{name}" for name in ("to_torch", "Tensor.to_torch", "Tensor.to_numpy", "Tensor.to_list"))
COPIES_TO_DEVICE = frozenset({"ttnn.copy_host_to_device_tensor", "ttnn.copy_host_to_device_tensor_partial"})
_REPLAYS = "ttnn.execute_trace"
_CAPTURES = "ttnn.begin_trace_capture"
_DEALLOCATES = frozenset({"ttnn.deallocate", "ttnn.Tensor.deallocate"})


@dataclass(slots=True)
class TensorUse:
    """One tensor of one call.

    Attributes:
        argument: name of the argument, or its place (``0``); ``buffers[1]`` in a list; of a result ``result``.
        buffer: id of the memory; a view has that of its source.
        tensor: id of the tensor; what an operation writes in place keeps its own.
        bytes: on one device, padding of tiles and pages included.
        devices: ids of the devices that hold a part, row-major in their mesh, whose shape is ``mesh``.
        memory: name of the buffer type; ``sharding`` that of the memory layout if it is not interleaved.
        placements: per axis the dim that ttnn says is cut along it, None for replicas; often only nominal.
        made: number of the event that gave the program this very object; -1 if none did.
        bank_bytes: of ``bytes`` what lies in one bank, from ``address`` on.
    """

    argument: str
    buffer: int
    address: int
    shape: tuple[int, ...]
    dtype: str
    layout: str
    memory: str
    sharding: str | None
    bytes: int
    devices: tuple[int, ...]
    tensor: int = 0
    mesh: tuple[int, ...] = ()
    placements: tuple[int | None, ...] = ()
    made: int = -1
    bank_bytes: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """The kind of memory and the address, the same in all of its banks."""
        return self.memory, self.address

    def overlaps(self, other: TensorUse) -> bool:
        """Whether both lie, in part, in the same memory of some device."""
        first, last = sorted((self, other), key=lambda use: use.address)
        shared = self.memory == other.memory and not set(self.devices).isdisjoint(other.devices)
        return shared and last.address < first.address + first.bank_bytes


@dataclass(frozen=True)
class Reuse:
    """A program of ttnn's cache that is run for other arguments than it was built for.

    Attributes:
        program: the device operation.
        op, where: the call that it was built for, and its line.
        differs: arguments, each with its value then and now.
    """

    program: str
    op: str
    where: str
    differs: tuple[tuple[str, str, str], ...]


@dataclass
class Event:
    """One call, with the tensors on devices among its arguments and results.

    Attributes:
        number: place in the program.
        where: ``path.py:line`` of the user's code.
        options: all other arguments, as JSON values; ``semaphores`` has the addresses of all of them.
        collectives: as :func:`tt_impl.trace.collectives.crossings` tells them.
        written: buffers among the inputs that the operation wrote.
        dead: arguments that had been deallocated before, as they were.
        uneven: of a read to the host, the axes along which ttnn says replicas, but whose devices hold other values;
            of a copy to devices those along which it left them other values.
        error: name of the exception that ended the call.
        refused: first line of that exception, if ttnn or the mock in its place refused the call.
        not_finite: what the call made of inputs without: ``NaN``, ``infinity``.
        passes_nan_on: its result has NaN, as an input has.
        padding_reads: what it read of tiles' padding as if it were data.
        kernel_warnings: what the simulator of a TT-Lang kernel warned of, and whether the mock chose its grid.
        reused: programs that the call runs and that were built for other arguments.
        allocated: of a trace's replay, the places on its mesh that are taken; None for any other call.
    """

    number: int
    op: str
    where: str
    inputs: list[TensorUse]
    outputs: list[TensorUse] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    collectives: list[dict[str, Any]] = field(default_factory=list)
    written: tuple[int, ...] = ()
    dead: list[TensorUse] = field(default_factory=list)
    uneven: tuple[int, ...] = ()
    error: str | None = None
    refused: str = ""
    not_finite: tuple[str, ...] = ()
    passes_nan_on: bool = False
    padding_reads: tuple[PaddingRead, ...] = ()
    kernel_warnings: tuple[tuple[str, bool], ...] = ()
    reused: tuple[Reuse, ...] = ()
    allocated: frozenset[tuple[str, int]] | None = None

    @property
    def mesh(self) -> tuple[int, ...]:
        """Shape of the mesh, or submesh, that the call ran on; empty if it had no tensor on one."""
        return next((use.mesh for use in (*self.inputs, *self.outputs)), ())

    @property
    def devices(self) -> tuple[int, ...]:
        """Ids of the devices of that mesh that took part, row-major."""
        return next((use.devices for use in (*self.inputs, *self.outputs)), ())


class EventLog:
    """A handler for :func:`tt_impl.trace.intercept.intercepted`; install it with ``first``, before all others.

    Args:
        shadow: tells which buffers were written, in place or as a result that was given, and whether replicas are
            equal; without it nothing does.

    Attributes:
        events: what happened, in order.
        frees: by buffer the event that deallocated it.
        left_by_error: numbers of events whose error ended the program, or is what the program expects.
    """

    def __init__(self, shadow: ProgramValues | None = None) -> None:
        self.events: list[Event] = []
        self.frees: dict[int, Event] = {}
        self.left_by_error: set[int] = set()
        self._shadow = shadow
        if shadow is not None:
            shadow.takes_notes = True
        self._uses: dict[tuple[int, int], TensorUse] = {}
        self._last: dict[int, TensorUse] = {}
        self._made: dict[int, tuple[int, int]] = {}
        self._banks: dict[str, int] = {}  # of each memory: all devices are alike
        self._taken: frozenset[tuple[str, int]] = frozenset()

    def __call__(self, call: Invocation) -> Any:
        named = arguments(call)
        inputs, dead = self._inputs(named)
        live = [tensor for _, tensor in inputs]
        event = Event(len(self.events), call.name, user_line(), [self._use(*place) for place in inputs], dead=dead)
        event.options = options_of(named)
        event.collectives = crossings(call.name, named, live)
        if call.name == _CAPTURES and not cluster.process.is_open:  # a mesh of the program's own
            event.options["trace_region_bytes"] = _trace_region(call)
        if call.name == _REPLAYS:
            event.allocated = self._allocated(call)
        self.events.append(event)
        before = self._contents(event)
        if call.name in _READS and live and self._shadow is not None:
            event.uneven = uneven_axes(self._shadow, live[0])
        try:
            result = call.proceed()
            if call.name in COPIES_TO_DEVICE and live and self._shadow is not None:
                event.uneven = (*cut_axes(live[0]), *uneven_axes(self._shadow, live[0]))
        except BaseException as error:
            event.error = type(error).__name__
            event.refused = _refusal(error)
            if event.refused and error_is_expected():
                self.left_by_error.add(event.number)
            with contextlib.suppress(AttributeError):  # a class with slots
                # The error itself says which call raised it: a table would keep it, and with it the program's tensors.
                error._ttnn_event = event.number  # type: ignore[attr-defined]
            raise
        finally:
            if self._shadow is not None:
                event.not_finite, event.passes_nan_on = self._shadow.take_not_finite()
                event.padding_reads = self._shadow.take_padding_reads()
                event.kernel_warnings = self._shadow.take_kernel_warnings()
        results = [(place, tensor) for place, tensor in tensors_at("result", result) if _alive(tensor)]
        for _, tensor in results:
            self._made[id(tensor)] = tensor.tensor_id, event.number
        event.outputs = [self._use(*place) for place in results]
        if isinstance(result, Semaphore | ttnn.MeshTraceId):
            event.options["result"] = plain(result)
        if call.name not in NEVER_WRITE:
            after = self._contents(event)
            event.written = tuple(b for b, values in after.items() if values is not None and values is not before[b])
        for (_, tensor), use in zip(inputs, event.inputs, strict=True):
            if call.name in _DEALLOCATES and not tensor.is_allocated():
                self.frees[use.buffer] = event
        return result

    def ended_by(self, error: BaseException | None) -> None:
        """Say that an error ended the program, or was expected by it, and so did those that it was raised from."""
        while error is not None:
            number = getattr(error, "_ttnn_event", None)
            if number is not None:
                self.left_by_error.add(number)
            error = error.__cause__ or error.__context__

    @property
    def sees_writes(self) -> bool:
        """Whether ``Event.written`` is known."""
        return self._shadow is not None

    def _inputs(self, named: dict[str, Any]) -> tuple[list[tuple[str, ttnn.Tensor]], list[TensorUse]]:
        """Return tensors that live on devices by argument, and those that did before they were deallocated."""
        live = []
        dead = []
        for name, value in named.items():
            for argument, tensor in tensors_at(name, value):
                if _alive(tensor):
                    live.append((argument, tensor))
                elif on_device(tensor) and (last := self._last.get(tensor.tensor_id)) is not None:
                    dead.append(replace(last, argument=argument))
        return live, dead

    def _use(self, argument: str, tensor: ttnn.Tensor) -> TensorUse:
        key = tensor.tensor_id, buffer_of(tensor)
        known = self._uses.get(key)
        if known is None:
            known = _described(tensor, *key)
            known.bank_bytes = self._in_a_bank(tensor, known)
            self._uses[key] = known
            self._last[key[0]] = known
        made, event = self._made.get(id(tensor), (-1, -1))
        if made != key[0]:  # another object lived where this one does
            event = -1
        return replace(known, argument=argument, made=event)

    def _in_a_bank(self, tensor: ttnn.Tensor, use: TensorUse) -> int:
        """Return how many bytes of a tensor lie in each bank: of a core for shards, else whole pages in turn."""
        memory = tensor.memory_config()
        if use.sharding is not None and memory.shard_spec is not None:
            return -(-use.bytes // memory.shard_spec.grid.num_cores())
        if use.memory not in self._banks:
            self._banks[use.memory] = ttnn.get_memory_view(tensor.device(), memory.buffer_type).num_banks
        return -(-tensor.buffer_num_pages() // self._banks[use.memory]) * tensor.buffer_aligned_page_size()

    def _allocated(self, call: Invocation) -> frozenset[tuple[str, int]]:
        """Return the places that are taken on the meshes of a call; equal answers in a row are one object."""
        taken = frozenset(
            (buffer.buffer_type.name, buffer.address)
            for mesh in call.meshes
            for buffer in ttnn._ttnn.reports.get_buffers(mesh)
            if buffer.device_id == mesh.id()
        )
        if taken != self._taken:
            self._taken = taken
        return self._taken

    def _contents(self, event: Event) -> dict[int, Any]:
        """Return the shadow's values of the buffers among the inputs: another object after each write."""
        if self._shadow is None:
            return {}
        values = self._shadow.store.values
        return {use.buffer: values.get(use.buffer) for use in event.inputs}


def _trace_region(call: Invocation) -> int:
    """Return how many bytes each device of the call's mesh has set aside for traces."""
    view = ttnn.get_memory_view(call.meshes[0], ttnn.BufferType.TRACE)
    return view.total_bytes_per_bank * view.num_banks


def _refusal(error: BaseException) -> str:
    """Return the first line of what ttnn, or a guard in its place, says against a call; empty for any other error."""
    text = str(error)
    by_ttnn = isinstance(error, RuntimeError) and ("TT_FATAL" in text or "TT_THROW" in text or "TT_ASSERT" in text)
    if not by_ttnn and (isinstance(error, ShadowError) or not isinstance(error, RefsimError)):
        return ""
    _, has_info, info = text.partition("info:")
    lines = (info if has_info else text).partition("backtrace:")[0].strip().splitlines()
    return lines[0].strip()[:200] if lines else type(error).__name__


def _alive(tensor: ttnn.Tensor) -> bool:
    return on_device(tensor) and tensor.is_allocated()


def _described(tensor: ttnn.Tensor, tensor_id: int, buffer: int) -> TensorUse:
    device = tensor.device()
    memory = tensor.memory_config()
    shape = tensor.shape
    rows = device.shape
    mesh = tuple([rows[i] for i in range(rows.dims())])
    ids = device.get_device_ids()
    coords = tensor.device_coords()
    devices = ids if len(coords) == len(ids) else [ids[c[0] * mesh[-1] + c[1]] for c in coords]
    return TensorUse(
        argument="",
        buffer=buffer,
        address=address_of(tensor),
        shape=tuple([shape[i] for i in range(shape.rank)]),
        dtype=tensor.dtype.name,
        layout=tensor.layout.name,
        memory=memory.buffer_type.name,
        sharding=memory.memory_layout.name if tensor.is_sharded() else None,
        bytes=tensor.buffer_num_pages() * tensor.buffer_aligned_page_size(),
        devices=tuple(devices),
        tensor=tensor_id,
        mesh=mesh,
        placements=placements_of(tensor),
    )
