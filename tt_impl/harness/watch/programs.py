"""Programs of ttnn's cache that are run for other arguments than those they were built for.

    call -> ... -> shadow -> Programs -> ttnn
                             (arguments that were not seen before: a capture of ttnn's graph tells which device
                             operations the call became, and whether the program of each was built or cached)

ttnn finds a program by a key, to which every device operation says what belongs. What it leaves out has to be written
into the program at each call; where that is forgotten, a device does what the first call asked for. What ttnn tells of
a device operation is its attributes and its tensors; of some only the name of their type, and these are judged by the
arguments of the call. An argument that is left out in one of two calls may have the value of the other by default, so
that only says something where the default is nothing, and of dtypes where the results differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
import ttnn

from tt_impl.harness.watch.meter import meshes_of
from tt_impl.mock.log.events import Event, EventLog, Reuse, TensorUse
from tt_impl.mock.rules.registry import BUFFERS, OUTPUTS
from tt_impl.trace.collectives import Semaphore, arguments
from tt_impl.trace.graph import DeviceOp, Operand, capturing, read
from tt_impl.trace.intercept import TENSOR, Invocation, tensors_in

REWRITTEN = {
    "a scalar is a runtime argument of its kernels": """
        BinaryNgDeviceOperation ReduceDeviceOperation TernaryDeviceOperation""",
    "seed and bounds of random numbers are runtime arguments": """
        BernoulliDeviceOperation DropoutDeviceOperation RandDeviceOperation RandnDeviceOperation
        UniformDeviceOperation""",
    "row and user of a cache are runtime arguments": """
        PagedFillCacheDeviceOperation PagedFusedUpdateCacheDeviceOperation PagedUpdateCacheDeviceOperation
        UpdateKVCacheOperation""",
    "where a part begins and ends are runtime arguments": """
        InterleavedToShardedPartialDeviceOperation SliceWriteDeviceOperation""",
    "learning rate and step are runtime arguments": "MorehAdamOperation MorehAdamWDeviceOperation",
    "whether to make a table anew is asked at each call": "ReshapeViewDeviceOperation",
}
"""Device operations whose key lacks some numbers on purpose, because each call writes them into the program, by why.

ttnn's sources say so, or kernels and buffers of both programs are the same when they are built (ttnn 0.81.1).
"""
_NUMBERS = frozenset(name for names in REWRITTEN.values() for name in names.split())
_ARGUMENTS = {"AllGatherMinimalMatmulAsyncOp": "scalar"}
"""The same of operations that hide their attributes: an argument of the call."""
_NOTHING_BY_DEFAULT = frozenset({"activation", "fused_activation"})
_OPAQUE = re.compile(r"<\w+>")
_SHAPE = re.compile(r"(Shape|SmallVector)\(\[[^]]*\]\)")
_TOPOLOGY = re.compile(r"TensorTopology\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""How the parts of devices make one tensor, which no program of a device depends on."""
_NUMBER = re.compile(r"-?\b\d+(\.\d+)?(e[+-]?\d+)?\b")
_NO_OPTIONS = (Semaphore, TENSOR, ttnn.MeshDevice, ttnn.SubDeviceId, torch.Tensor)
_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")

Difference = tuple[str, str, str]
"""An argument, its value when the program was built, and now."""


@dataclass(frozen=True)
class _Launch:
    """A device operation of a call.

    Attributes:
        texts: the arguments of the call that are no tensors, by name, as text; without those that are None.
        results: ids of tensors that the call was given for its results.
    """

    event: Event
    program: DeviceOp
    texts: dict[str, str]
    results: frozenset[int]

    @property
    def opaque(self) -> bool:
        return _OPAQUE.fullmatch(self.program.attributes) is not None

    @property
    def attributes(self) -> list[str]:
        text = _SHAPE.sub(r"\1", _TOPOLOGY.sub("std::nullopt", self.program.attributes))
        if self.program.name in _NUMBERS:
            text = _NUMBER.sub("#", text)
        return text.split(", ")

    @property
    def inputs(self) -> list[Operand]:
        """What it reads, each tensor once."""
        return list({o.number: o for o in self.program.inputs if o.number not in self.results}.values())

    def differs(self, built: _Launch) -> list[Difference]:
        """Return how this differs from what ``built`` says, as far as one program cannot be right for both."""
        of_tensors = _of_operands("input", built.inputs, self.inputs)
        of_results = _of_operands("result", built.program.outputs, self.program.outputs)
        of_call = self._of_arguments(built)
        if self.opaque:
            return [*of_call, *of_tensors, *of_results]
        pairs = [(old, new) for old, new in zip(built.attributes, self.attributes, strict=False) if old != new]
        of_attributes = [("an attribute", old, new) for old, new in pairs]
        return [*((of_call or of_attributes) if pairs else ()), *of_tensors, *of_results]

    def _of_arguments(self, built: _Launch) -> list[Difference]:
        rewritten = _ARGUMENTS.get(self.program.name)
        differences = []
        for name in sorted(built.texts.keys() | self.texts.keys()):
            old = built.texts.get(name)
            new = self.texts.get(name)
            certain = name in _NOTHING_BY_DEFAULT or (old is not None and new is not None)
            if old != new and certain and name != rewritten and built.event.op == self.event.op:
                differences.append((name, str(old), str(new)))
        return differences


def _of_operands(what: str, built: list[Operand] | tuple[Operand, ...], now: list[Operand] | tuple) -> list[Difference]:
    """Compare dtypes, layouts and memory of tensors in their order; sizes are for runtime arguments."""
    differences = []
    for old, new in zip(built, now, strict=False):
        for name in ("dtype", "layout", "memory"):
            values = getattr(old, name), getattr(new, name)
            if values[0] != values[1]:
                differences.append((f"the {name} of its {what}", *values))
    return differences


@dataclass
class _Cache:
    """What is known of the programs of a mesh.

    Attributes:
        entries: how many there were after the last call.
        complete: all of them were built while somebody looked.
        built: by device operation.
        calls: those whose programs are known.
    """

    entries: int = 0
    complete: bool = True
    built: dict[str, list[_Launch]] = field(default_factory=dict)
    calls: set[tuple] = field(default_factory=set)


_CACHES: dict[int, _Cache] = {}
"""By id of the mesh. It outlives a watched program, as ttnn's cache does: the tests of a file may share a mesh."""


def _cache_of(mesh: ttnn.MeshDevice) -> _Cache:
    entries = mesh.num_program_cache_entries()
    cache = _CACHES.setdefault(mesh.id(), _Cache())
    if entries < cache.entries:  # somebody cleared it, or it is another mesh of the same id
        cache = _Cache()
        _CACHES[mesh.id()] = cache
    if entries > cache.entries:
        cache.complete = False
    return cache


class Programs:
    """A handler for :func:`tt_impl.trace.intercept.intercepted`; install it after all others, next to ttnn.

    Args:
        log: the event log, which has noted a call before it comes here, and gets what is found in ``Event.reused``.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def __call__(self, call: Invocation) -> Any:
        meshes = meshes_of(call)
        if not meshes:
            return call.proceed()
        mesh = meshes[0]
        cache = _cache_of(mesh)
        event = self._log.events[-1]
        named = arguments(call)
        texts = {name: text for name, value in named.items() if (text := _text(value))}
        hosts = (value for value in named.values() if isinstance(value, torch.Tensor | TENSOR))
        shapes = [(tuple(value.shape), str(value.dtype)) for value in hosts]
        key = call.name, tuple(texts.items()), tuple(map(_spec, event.inputs)), tuple(shapes)
        if key in cache.calls:
            return call.proceed()
        with capturing(dispatch=True) as nodes:
            result = call.proceed()
        cache.calls.add(key)
        cache.entries = mesh.num_program_cache_entries()
        outputs = (value for name, value in named.items() if name in OUTPUTS or name in BUFFERS)
        results = frozenset(tensor.tensor_id for value in outputs for tensor in tensors_in(value))
        self._note(cache, [_Launch(event, program, texts, results) for program in read(nodes).ops])
        return result

    def _note(self, cache: _Cache, launches: list[_Launch]) -> None:
        for launch in launches:
            built = cache.built.setdefault(launch.program.name, [])
            if not launch.program.cached:
                built.append(launch)
            elif cache.complete and not (launch.opaque and _explained(launches)):
                self._judge(launch, built)

    def _judge(self, launch: _Launch, built: list[_Launch]) -> None:
        """Note that no program that was built is one for this."""
        alike = [other for other in built if not launch.opaque or other.event.op == launch.event.op]
        ways = [(launch.differs(other), other) for other in alike]
        if ways and all(differences for differences, _ in ways):
            differences, other = min(ways, key=lambda way: len(way[0]))
            reuse = Reuse(launch.program.name, other.event.op, other.event.where, tuple(differences))
            launch.event.reused = (*launch.event.reused, reuse)


def _explained(launches: list[_Launch]) -> bool:
    """Whether a call's arguments may be those of another of its device operations, which shows them or was built."""
    return not all(launch.opaque and launch.program.cached for launch in launches)


def _spec(use: TensorUse) -> tuple:
    """Return what of a tensor may belong to the key of a program."""
    return use.argument, use.shape, use.dtype, use.layout, use.memory, use.sharding, use.bank_bytes


def _text(value: Any) -> str:
    """Write an option as text; empty for one that is None, and for what is no option."""
    if value is None or isinstance(value, _NO_OPTIONS):
        return ""
    if isinstance(value, list | tuple):
        parts = list(map(_text, value))
        return f"[{', '.join(parts)}]" if any(parts) else ""
    shown = repr(value)
    if _ADDRESS.search(shown) is None:
        return shown
    names = (name for name in dir(value) if not name.startswith("_"))
    parts = [f"{name}={_ADDRESS.sub('', repr(getattr(value, name)))}" for name in names]
    return f"{type(value).__name__}({', '.join(part for part in parts if '<' not in part)})"
