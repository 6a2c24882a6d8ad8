"""Values for every ttnn call, per device: the program is unchanged, its answers are real.

The real operation runs first, with all its checks, on the mock mesh; then its rule computes what each device would
hold, and the result is kept, rounded to the dtype of the output, under the output's buffer. Reading a tensor back
gives these values. An operation without a rule raises, naming the operation. Rules are torch semantics: they
prove sharding, collectives, axes, head orders and paddings, not kernels, races or speed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import ttnn

import tt_impl.mock.rules  # noqa: F401 - registers the rules
from refsim.base import heap
from tt_impl.mock.calls.again import is_written, origin_of, sign
from tt_impl.mock.calls.checks import emulating
from tt_impl.mock.calls.constructors import Constructors
from tt_impl.mock.calls.golden import OPTION, golden_values, has_golden
from tt_impl.mock.calls.special import (
    READS,
    SPECIAL,
    WITHOUT_VALUES,
    check_queue,
    limits_on_host,
    touches_device,
)
from tt_impl.mock.calls.stand_ins import on_whole_devices
from tt_impl.mock.calls.traces import Recorded, Tracing, remembered, step_of
from tt_impl.mock.calls.waiting import Queue, Queues
from tt_impl.mock.rules.complex import ALSO_REAL, MARK
from tt_impl.mock.rules.padding_left import left_in_tiles
from tt_impl.mock.rules.padding_read import padding_reads, with_padding, within
from tt_impl.mock.rules.registry import BUFFERS, OUTPUTS, RULES, VIEWS, Call, Rule, for_rule, mapped, neutral
from tt_impl.mock.storage.buffers import BufferValues
from tt_impl.mock.storage.constants import as_in_c
from tt_impl.mock.storage.errors import FailedRule, MissingRule, RefusedOption, ShadowError
from tt_impl.mock.storage.host import host_shards
from tt_impl.mock.storage.values import Shards, shape_of
from tt_impl.mock.storage.zeros import Zeros
from tt_impl.mock.ttlang.module import served
from tt_impl.trace.buffers import buffer_of
from tt_impl.trace.intercept import COMPLEX, TENSOR, Invocation, intercepted, on_device, tensors_in

if TYPE_CHECKING:
    from tt_impl.mock.numerics import Numerics

__all__ = ["SPECIAL", "Shadow", "ShadowError", "shadow_values"]

OFF = "off"
_WRITTEN = {*OUTPUTS, *BUFFERS}
_KEPT_BYTES = 256 << 20
"""Tensors up to this are freed and made in turn, most operations one: of new memory every page costs a fault."""


class Shadow(Tracing):
    """The values of one program; ``calls`` counts its operations by name.

    ``evaluations`` counts how often rules computed: once for all devices that share their inputs. With ``fallback``,
    operations that no rule answers are answered by ttnn's golden functions, and ``fallbacks`` counts them. With
    ``numerics`` values are rounded as kernels do (:class:`tt_impl.mock.numerics.Numerics`), by default once.
    Without ``values`` nothing is computed: what is read are zeros, and only what ttnn cannot do on a mock is emulated.
    """

    def __init__(self, fallback: bool, numerics: str, values: bool) -> None:
        super().__init__()
        self.computes = values
        self._warned = False
        if not values:
            self.store = Zeros()
            self.queues = Queues(self.store)
        self.fallback = fallback
        self.numerics = numerics_of(numerics)
        self.fallbacks: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.evaluations: Counter[str] = Counter()

    def values(self, tensor: ttnn.Tensor) -> list[torch.Tensor]:
        """Return the value of a device tensor on every device, row-major: float32, or int64 for integers."""
        return list(self.store.read(tensor, "values()"))

    def handle(self, call: Invocation) -> Any:
        if call.name in ALSO_REAL and any(isinstance(value, COMPLEX) for value in (*call.args, *call.kwargs.values())):
            call = replace(call, name=call.name + MARK)
        self.calls[call.name] += 1
        self.check_traced(call.name)
        if call.name == "ttnn.slice" and self.computes:
            call = limits_on_host(self, call)
        asked = call.kwargs
        call = on_whole_devices(self, call)
        if not self.computes:
            return self._without_values(call)
        special = SPECIAL.get(call.name)
        if special is not None:
            if self.queues:
                check_queue(self, call)
            result = special(self, call)
            self.note_special(call, result)
            return result
        if not touches_device(call):
            return self._without_device(call)
        if call.name not in RULES and not (self.fallback and has_golden(call.name)):
            raise MissingRule(call.name)
        # Read before the operation runs: it may free its inputs, or be told to write into one of them.
        inputs = _seen_by_rule(call)
        if self.queues and (queue := self.queues.of(call.inputs, call.meshes)) is not None:
            return self._later(call, asked, inputs, queue)
        shards = {id(t): self.store.read(t, call.name) for t in inputs}
        viewed = {buffer_of(t) for t in _moved(call)} if call.name in VIEWS else ()
        read = padding_reads(call, self.store) if self.takes_notes else []
        before = self._before(call)
        known: dict[int, Recorded] = {}
        if self.capturing is not None:
            remembered(inputs, known)
        result = call.proceed()
        outputs = _on_devices(result)
        written = [t for t in outputs if buffer_of(t) not in viewed] if viewed else outputs
        if written or not outputs:
            context = Call(call.name, call.args, asked, outputs, self.store)
            self.evaluate(context, shards, written)
            self.note(context, inputs, written, known)
            self.padding_reads += read
        self._forget_unused(before, outputs)
        return result

    def _later(self, call: Invocation, asked: dict[str, Any], inputs: list[ttnn.Tensor], queue: Queue) -> Any:
        """Build an operation whose devices wait; its values are computed when they go on."""
        known: dict[int, Recorded] = {}
        remembered(inputs, known)
        moved = {buffer_of(t) for t in _moved(call)} if call.name in VIEWS else ()
        result = call.proceed()
        outputs = _on_devices(result)
        written = [t for t in outputs if buffer_of(t) not in moved]
        if written or not outputs:
            step = step_of(Call(call.name, call.args, asked, outputs, self.store), inputs, written, known)
            queue.steps.append((None, lambda: step.run(self)))
        return result

    def _without_values(self, call: Invocation) -> Any:
        """Let ttnn do everything that it can; what is read to the host are the zeros of its mock."""
        emulated = WITHOUT_VALUES.get(call.name)
        if emulated is not None:
            return emulated(self, call)
        if call.name in READS and not self._warned and call.inputs:
            self._warned = True
            print(f"values are off: {call.name} and all else that reads from a device gives zeros.", file=sys.stderr)
        return call.proceed()

    def evaluate(self, context: Call, shards: dict[int, Shards], written: list[ttnn.Tensor]) -> None:
        """Compute the outputs and keep those that are ``written``: the others are views of inputs."""
        origin = None
        if context.name in RULES and any(buffer_of(tensor) in self.store.values for tensor in written):
            origin = origin_of(context, self.store, written, all_options=self.numerics is not None)
            if origin is not None and is_written(origin, self.store, written):
                return
        whole = with_padding(context, self.store, shards)
        values = self._values(context, whole)
        if whole is not shards:
            pairs = zip(values, context.outputs, strict=True)
            values = [within(shape_of(tensor), value) for value, tensor in pairs]
        self.evaluations[context.name] += context.evaluations
        if len(values) != len(context.outputs):
            raise ShadowError(f"{context.name} gives {len(context.outputs)} tensors, but its rule {len(values)}.")
        if shards and self.takes_notes:
            self.look_at(values, shards.values())
        stored = set(map(id, written))
        left = [left_in_tiles(context, tensor) for tensor in context.outputs] if context.padding is None else []
        for i, (tensor, value) in enumerate(zip(context.outputs, values, strict=True)):
            if id(tensor) in stored:
                self.store.write(tensor, value, context.name, left[i] if left else context.padding)
        if origin is not None:
            sign(origin, self.store, written)

    def _before(self, call: Invocation) -> dict[int, BufferValues | None]:
        """Return the buffers that an operation may write into, by id, and what they hold before it runs."""
        if not call.kwargs:
            return {}
        tensors = _on_devices([call.kwargs[name] for name in _WRITTEN & call.kwargs.keys()])
        buffers = [buffer_of(t) for t in tensors]
        return {buffer: self.store.values.get(buffer) for buffer in buffers}

    def _forget_unused(self, before: dict[int, BufferValues | None], outputs: list[ttnn.Tensor]) -> None:
        """Forget a buffer that the operation was given, but did not return, nor its rule write: nobody knows it now."""
        returned = {buffer_of(t) for t in outputs} if before else set()
        for buffer, former in before.items():
            if buffer not in returned and self.store.values.get(buffer) is former:
                self.store.values.pop(buffer, None)

    def _values(self, context: Call, shards: dict[int, Shards]) -> list[list[torch.Tensor]]:
        """Compute the outputs by the rule; by ttnn's golden function where there is none, or it refuses an option."""
        rule = RULES.get(context.name)
        if rule is None:
            self.fallbacks[context.name] += 1
            if self.numerics is not None:
                self.numerics.once[context.name] += 1
            return golden_values(context, shards)
        try:
            if self.numerics is not None:
                return self.numerics.values(context, rule, lambda rule: _by_rule(rule, context, shards))
            return _by_rule(rule, context, shards)
        except RefusedOption as refused:
            if not (self.fallback and has_golden(context.name)):
                raise
            try:
                values = golden_values(context, shards)
            except ShadowError as error:
                raise refused from error
        self.fallbacks[context.name + OPTION] += 1
        return values

    @staticmethod
    def _without_device(call: Invocation) -> Any:
        result = call.proceed()
        if _on_devices(result):
            raise MissingRule(call.name)
        return result


def numerics_of(level: str) -> Numerics | None:
    """Return what rounds at ``level``, None for ``off``; only then is the arithmetic of the device loaded."""
    if level == OFF:
        return None
    from tt_impl.mock.numerics import Numerics

    return Numerics(level)


@contextmanager
def shadow_values(fallback: bool = False, numerics: str = OFF, values: bool = True) -> Iterator[Shadow]:
    """Compute values while the block runs; tensors made before have none.

    Args:
        fallback: let ttnn's golden functions answer where no rule does. Weak evidence, counted in ``Shadow.fallbacks``.
        numerics: ``exact`` or ``fast`` rounds as kernels do, ``off`` rounds the exact result of an operation once.
        values: False computes none, for programs of which only shapes and memory are asked; what is read are zeros.
    """
    if values:
        heap.give_back()  # of a program before: between what is still in use, large tensors would find no room
        heap.keep_freed(_KEPT_BYTES)
    shadow = Shadow(fallback, numerics, values)
    light = Constructors(of_host=not values)
    with emulating(), served(), _closing(shadow), intercepted(shadow.handle), intercepted(light, nearest=True):
        yield shadow


@contextmanager
def _closing(shadow: Shadow) -> Iterator[None]:
    """Forget what a mesh holds when it is closed: values outlive a test where a fixture of its module may hold some."""

    def forgetting(close: Callable[..., None]) -> Callable[..., None]:
        def closed(*args: Any, **kwargs: Any) -> None:
            for mesh in (*args, *kwargs.values()):
                shadow.store.forget({mesh.id(), *(submesh.id() for submesh in mesh.get_submeshes())})
            close(*args, **kwargs)

        return closed

    closers = {name: getattr(ttnn, name) for name in ("close_device", "close_mesh_device")}
    for name, close in closers.items():
        setattr(ttnn, name, forgetting(close))
    try:
        yield
    finally:
        for name, close in closers.items():
            setattr(ttnn, name, close)


def _on_devices(value: Any) -> list[ttnn.Tensor]:
    return [tensor for tensor in tensors_in(value) if on_device(tensor)]


def _seen_by_rule(call: Invocation) -> list[ttnn.Tensor]:
    """List the device tensors whose values a rule sees: all but those passed by a keyword that is neutral."""
    if not call.kwargs:
        return call.inputs
    seen = {name: value for name, value in call.kwargs.items() if not neutral(name, call.name)}
    return call.inputs if len(seen) == len(call.kwargs) else _on_devices((call.args, seen))


def _moved(call: Invocation) -> list[ttnn.Tensor]:
    """Return what an operation that moves values reads: its first argument. Others may be given for the result."""
    named = (call.kwargs[name] for name in ("input_tensor", "tensor", "tensors", "input") if name in call.kwargs)
    return _on_devices(call.args[0] if call.args else next(named, None))


def _by_rule(rule: Rule, context: Call, shards: dict[int, Shards]) -> list[list[torch.Tensor]]:
    mesh_shape = next(iter(shards.values())).mesh_shape if shards else (1, 1)
    arguments = context.args, for_rule(context.kwargs, context.name)
    try:
        return rule(context, *mapped(lambda value: _prepare(value, shards, mesh_shape), arguments))
    except TypeError as error:
        raise RefusedOption(context.name, f"this call: {error}") from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, ValueError) as error:
        raise FailedRule(context.name, error) from error


def _prepare(value: Any, shards: dict[int, Shards], mesh_shape: tuple[int, int]) -> Any:
    """Return an argument as rules get it: tensors as ``Shards`` (or torch, if whole on the host), shapes as tuples."""
    if id(value) in shards:
        return shards[id(value)]
    if isinstance(value, TENSOR):
        parts = host_shards(value, 1)
        return parts[0] if len(parts) == 1 else Shards(parts, tuple(value.shape), mesh_shape)
    return tuple(value) if isinstance(value, ttnn.Shape) else as_in_c(value)
