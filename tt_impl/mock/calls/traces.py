"""Traces on a mesh that cannot capture any: what is called while capturing is remembered, and computed anew later.

On a device nothing runs while a trace is captured, and executing it runs the same programs on the same addresses. On
the mock every operation is built as usual while capturing (ttnn's checks are the real ones); when the capture ends,
what it wrote is forgotten, so that a program that reads an output before it executed the trace finds memory nobody has
written. Executing computes the values of every remembered operation in order, from what the buffers hold then.

A trace remembers buffers, not tensors: intermediate results are freed, and their addresses given out again, as if no
trace had looked. A tensor allocated after the capture on the address of such a result loses its value when the trace
is executed, as it would on a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
import ttnn

from refsim.base.errors import UserError
from tt_impl.mock.calls.stand_ins import Emulating
from tt_impl.mock.rules.registry import Call, mapped
from tt_impl.mock.storage.buffers import BufferValues
from tt_impl.mock.storage.errors import ShadowError, UnseenValue
from tt_impl.mock.storage.values import Shards, Store
from tt_impl.trace.buffers import address_of, buffer_of
from tt_impl.trace.intercept import TENSOR, Invocation, Remembered, on_device, tensors_in

_ATTRIBUTES = ("dtype", "layout", "padded_shape", "shape", "spec", "tensor_id", "tile")
_METHODS = (
    "buffer_unique_id device device_coords is_per_core_allocated is_sharded memory_config storage_type tensor_topology"
).split()


class Recorded(Remembered):
    """A device tensor as a trace remembers it: all that its values need to know, without keeping its memory."""

    def __init__(self, tensor: ttnn.Tensor) -> None:
        for name in _ATTRIBUTES:
            setattr(self, name, getattr(tensor, name, None))
        for name in _METHODS:
            if hasattr(tensor, name):
                setattr(self, name, _constant(getattr(tensor, name)()))
        self.address = address_of(tensor)

    def buffer_address(self) -> int:
        return self.address

    def experimental_per_core_buffer_address(self, *_: Any) -> int:
        return self.address

    def is_allocated(self) -> bool:
        return True


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


@dataclass
class Step:
    """One operation of a trace.

    Attributes:
        values: what it wrote, where no rule computes it anew (``ttnn.zeros``, ``ttnn.sampling``).
        seen: what its inputs held then; on other values a replay would write something else.
    """

    call: Call
    inputs: list[Any]
    written: list[Any]
    values: list[list[torch.Tensor]] = field(default_factory=list)
    seen: list[list[torch.Tensor]] = field(default_factory=list)

    def run(self, shadow: Tracing) -> None:
        """Write ``values``, or compute the operation from what the buffers hold now."""
        store = shadow.store
        name = self.call.name
        try:
            shards = {id(t): store.read(t, name) for t in self.inputs}
        except UnseenValue as error:
            raise ShadowError(
                f"ttnn.execute_trace repeats {name}, one of whose inputs was freed after the capture; "
                "keep the inputs of a trace allocated."
            ) from error
        if self.values or self.seen:
            self._repeat(store, [list(shards[id(t)]) for t in self.inputs])
            return
        shadow.evaluate(replace(self.call, evaluations=0, padding=None), shards, self.written)

    def _repeat(self, store: Store, inputs: list[list[torch.Tensor]]) -> None:
        """Write what was written then, if the inputs hold what they held."""
        now = [value for shards in inputs for value in shards]
        then = [value for shards in self.seen for value in shards]
        if not all(a is b or torch.equal(a, b) for a, b in zip(now, then, strict=True)):
            raise ShadowError(
                f"ttnn.execute_trace repeats {self.call.name} on other values than those of the capture, which nothing "
                "here computes anew; call it outside of the trace."
            )
        for tensor, value in zip(self.written, self.values, strict=True):
            store.write(tensor, value, self.call.name)


@dataclass
class Trace:
    """A trace under way or captured; ``before`` is what the buffers held when the capture began."""

    identifier: ttnn.MeshTraceId
    before: dict[int, BufferValues]
    steps: list[Step] = field(default_factory=list)


class Tracing(Emulating, ABC):
    """The values of a program, and its traces, by ``id`` of the identifier that ttnn would have handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing: Trace | None = None
        self.captured: dict[int, Trace] = {}
        self._numbers = count()

    @abstractmethod
    def evaluate(self, context: Call, shards: dict[int, Shards], written: list[Any]) -> None:
        """Compute the outputs of an operation from its inputs, and store those that are ``written``."""

    def note(
        self, call: Call, inputs: list[ttnn.Tensor], written: list[ttnn.Tensor], known: dict[int, Recorded]
    ) -> None:
        """Remember an operation, if a trace is being captured.

        Args:
            written: its outputs that are no views.
            known: its inputs, as :func:`remembered` before it ran: it may have freed them.
        """
        if self.capturing is not None:
            self.capturing.steps.append(step_of(call, inputs, written, known))

    def note_special(self, call: Invocation, result: Any) -> None:
        """Remember an operation that no rule computes: ``ttnn.zeros`` and the like write one value every time."""
        if self.capturing is None or call.name in _ALLOCATES:
            return
        made = [t for t in tensors_in(result) if on_device(t)]
        read = [] if call.name in _CONSTANT else [t for t in call.inputs if on_device(t)]
        if not made and call.name not in _SENDS:
            return
        outputs = [Recorded(t) for t in made]
        inputs = [Recorded(t) for t in read]
        values = [list(self.store.read(t, call.name)) for t in made]
        seen = [list(self.store.read(t, call.name)) for t in read]
        context = Call(call.name, (), {}, outputs, self.store)
        self.capturing.steps.append(Step(context, inputs, outputs, values, seen))

    def next_trace(self) -> ttnn.MeshTraceId:
        """Make the identifier of another trace; a number is never given twice."""
        return ttnn.MeshTraceId(next(self._numbers))

    def check_traced(self, name: str) -> None:
        """Refuse what ttnn refuses while a trace is captured."""
        if self.capturing is not None and name in _TRANSFERS:
            raise UserError(
                f"{name} while a trace is captured moves data between host and device, which no trace can hold; "
                "call it before the capture."
            )


Special = Callable[[Any, Invocation], Any]
_ALLOCATES = frozenset(f"ttnn.{name}" for name in ("empty", "empty_like", "allocate_tensor_on_device", "manual_seed"))
"""Operations that write nothing into their result: memory that a trace takes so holds what was last written there."""
_CONSTANT = frozenset(f"ttnn.{name}" for name in "zeros zeros_like ones ones_like full full_like uniform".split())
"""Operations that write the same whatever their inputs hold."""
_SENDS = ("ttnn.experimental.send_async",)
"""Operations that give nothing back, and whose inputs matter elsewhere."""
_TRANSFERS = frozenset(
    """
    ttnn.from_torch ttnn.to_device ttnn.to_torch ttnn.from_device ttnn.Tensor.cpu ttnn.Tensor.to_torch
    ttnn.Tensor.to_numpy ttnn.Tensor.to_list ttnn.Tensor.item ttnn.copy_host_to_device_tensor
    ttnn.copy_host_to_device_tensor_partial ttnn.copy_device_to_host_tensor
    """.split()
)


def remembered(value: Any, known: dict[int, Recorded]) -> Any:
    """Return arguments with every device tensor replaced by a :class:`Recorded`; ``known`` gets them by ``id``."""

    def one(item: Any) -> Any:
        if not isinstance(item, TENSOR) or not on_device(item):
            return item
        if id(item) not in known:
            known[id(item)] = Recorded(item)
        return known[id(item)]

    return mapped(one, value)


def step_of(call: Call, inputs: list[ttnn.Tensor], written: list[ttnn.Tensor], known: dict[int, Recorded]) -> Step:
    """Return an operation that ran as a trace remembers it, see :meth:`Tracing.note`."""
    return Step(without_tensors(call, known), remembered(inputs, known), remembered(written, known))


def without_tensors(call: Call, known: dict[int, Recorded]) -> Call:
    """Return the call with all its device tensors replaced by what ``remembered`` makes of them."""
    return replace(call, **{name: remembered(getattr(call, name), known) for name in ("args", "kwargs", "outputs")})


def _begin(shadow: Tracing, call: Invocation) -> ttnn.MeshTraceId:
    if shadow.capturing is not None:
        raise UserError("ttnn.begin_trace_capture was called while another trace is captured; end that one before.")
    identifier = shadow.next_trace()
    shadow.capturing = Trace(identifier, dict(shadow.store.values))
    return identifier


def _end(shadow: Tracing, call: Invocation) -> None:
    """Undo what the capture wrote: inputs hold what they did before, results nothing."""
    trace = shadow.capturing
    if trace is None:
        raise UserError("ttnn.end_trace_capture was called, but no trace is being captured.")
    shadow.capturing = None
    shadow.captured[id(trace.identifier)] = trace
    for buffer, values in shadow.store.values.items():
        former = trace.before.get(buffer)
        shadow.store.values[buffer] = _unwritten(values) if former is None else former
    trace.before = {}
    _hand_over(shadow, trace)


def _hand_over(shadow: Tracing, trace: Trace) -> None:
    """Have a trace read, for an input that it freed, a tensor like it that was allocated there before it ended.

    Programs with two command queues do so: the input of the next replay is another tensor at the same address.
    """
    written: set[int] = set()
    for step in trace.steps:
        for tensor in step.inputs:
            buffer = buffer_of(tensor)
            heir = shadow.store.heir(tensor)
            if buffer not in written and buffer not in shadow.store.values and heir is not None:
                tensor.buffer_unique_id = _constant(heir)
        written |= {buffer_of(tensor) for tensor in step.written}


def _unwritten(written: BufferValues) -> BufferValues:
    """Fill memory with what nobody has written: not a number, or for integers the largest of eight bits."""
    values = {}
    for rank, value in written.values.items():
        nothing = float("nan") if value.is_floating_point() else 255
        values[rank] = torch.full((), nothing, dtype=value.dtype).expand(value.shape)
    return BufferValues(written.view, values)


def _find(shadow: Tracing, call: Invocation) -> Trace:
    trace = shadow.captured.get(id(call.argument("trace_id", 1)))
    if trace is None:
        raise UserError(f"{call.name} was given a trace that was released or never captured.")
    return trace


def _execute(shadow: Tracing, call: Invocation) -> None:
    shadow.emulated[call.name] += 1
    steps = _find(shadow, call).steps
    shadow.store.replaying = True
    try:
        for step in steps:
            step.run(shadow)
    finally:
        shadow.store.replaying = False


def _release(shadow: Tracing, call: Invocation) -> None:
    del shadow.captured[id(_find(shadow, call).identifier)]


def _is_capturing(shadow: Tracing, call: Invocation) -> bool:
    return shadow.capturing is not None


EMULATED_TRACES: dict[str, Special] = {
    "ttnn.begin_trace_capture": _begin,
    "ttnn.end_trace_capture": _end,
    "ttnn.execute_trace": _execute,
    "ttnn.is_trace_capture_active": _is_capturing,
    "ttnn.release_trace": _release,
}
