"""What records a model: a device that notes its ops instead of running them, and the tensors that flow between them.

aten call on meta tensors --> _Recorder: one op each, unless inside a region that is one op on the device
                              which op wrote which storage: an op *reads* the ops that wrote what it takes
collective, compute       --> ReadingDevice: one op, and a region for what torch does instead
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor
from torch import dtype as Dtype

from refsim.base.errors import UserError
from refsim.base.mesh import Topology
from refsim.base.options import RunOptions
from refsim.runtime.device import Device
from refsim.runtime.group import Group
from refsim.timing.read.meta import Quick, tensors_of

Shape = tuple[int, ...]
WHOLE = 1 << 40
"""Chunk size of attention in one piece: the device's op does its own chunks."""

NORMS = ("rms_norm", "layer_norm", "group_norm")
_PASSES = {"rope": "rotary_embedding", "argmax": "argmax"}
"""Declared ops that go once over their elements, and the names of their ops in TTNN."""


@dataclass(frozen=True)
class Op:
    """One operation of one device.

    Attributes:
        kind: ``matmul``, ``sdpa``, ``norm``, ``elementwise``, ``layout`` or ``collective``.
        name: ``linear``, ``sdpa``, an aten name, or the collective's.
        inputs, output: shapes; of a matmul (..., M, K) and (N, K), of sdpa q (B, H, M, E) and k (B, H, N, E).
        dtype: storage dtype of the inputs.
        stage, block: the model's part it belongs to, as ``block 3`` and 3; empty and -1 outside.
        axis, size, topology, bytes: of a collective: mesh axis, members, Ring or Line, bytes this device brings.
        stride: of a collective: devices from one member to the next on its axis.
        ring, step: the ring attention an op belongs to (its sdpa steps overlap its transfer), -1 elsewhere.
        declared: False for a reduction that no layer claims: part of a norm or a softmax that does not say so.
        id, reads: number of this op in the reading, and of those whose outputs it takes.
        module: it belongs to, by its name in the block: ``attn.to_q``.
        group: of a collective: the name of its group, as in :func:`refsim.runtime.group.parallel_groups`.
        live: bytes of activations in memory at most between this op and the next.
    """

    kind: str
    name: str
    inputs: tuple[Shape, ...]
    output: Shape
    dtype: str
    stage: str
    axis: Any = None
    size: int = 1
    topology: Topology | None = None
    bytes: int = 0
    ring: int = -1
    step: int = -1
    stride: int = 1
    id: int = -1
    reads: tuple[int, ...] = ()
    block: int = -1
    declared: bool = True
    module: str = field(default="", compare=False)
    group: str = ""
    live: int = field(default=0, compare=False)


class Flow:
    """Which op wrote which storage.

    Inside a region all that torch does belongs to the op noted last in it: what is taken, that op reads; what comes
    out, it wrote. Calls that are no op on the device (a reshape to the same shape) hand on who wrote their input.
    """

    def __init__(self) -> None:
        self.reads: list[set[int]] = []
        self._wrote: dict[int, frozenset[int]] = {}

    def writers(self, tensors: Iterable[Tensor]) -> set[int]:
        return set().union(*(self._wrote.get(_key(t), ()) for t in tensors))

    def takes(self, op: int, tensors: Iterable[Tensor]) -> None:
        self.reads[op] |= {w for w in self.writers(tensors) if w != op}

    def writes(self, ops: Iterable[int], tensors: Iterable[Tensor]) -> None:
        sources = frozenset(ops)
        for tensor in tensors:
            self._wrote[_key(tensor)] = sources

    def forget(self, key: int) -> None:
        self._wrote.pop(key, None)


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _Done:
    """A transfer that is complete."""

    def wait(self) -> None: ...


class _Posts:
    """A transport whose transfers are complete at once; the collective they are posted in reads and writes them."""

    name: ClassVar[str] = "none"
    rank = 0
    world_size = 1

    def __init__(self, device: ReadingDevice) -> None:
        self._device = device

    def isend(self, tensor: Tensor, dst: int, channel: int = 0, call: bytes = b"") -> _Done:
        if self._device.moving:
            self._device.flow.takes(self._device.moving[-1], [tensor])
        return _Done()

    def irecv(self, tensor: Tensor, src: int, channel: int = 0, call: bytes = b"") -> _Done:
        if self._device.moving:
            self._device.flow.writes(self._device.moving[-1:], [tensor])
        return _Done()

    def progress(self) -> None: ...


class ReadingDevice(Device):
    """A device that notes its ops instead of running them.

    Attributes:
        ops: noted so far, without ``reads``, which ``flow`` has.
        regions: of those open, the number of the first op that may own what happens inside.
        moving: numbers of the collectives that are open.
        live_bytes: bytes of activations that are in memory now.
        live: the most of them while an op was the last one noted, by number.
    """

    def __init__(self, options: RunOptions, rank: int = 0) -> None:
        whole = {"q_chunk_size": WHOLE, "k_chunk_size": WHOLE}
        super().__init__(options.but(detect_hazards=False, **whole), rank, _Posts(self))
        self.ops: list[Op] = []
        self.flow = Flow()
        self.regions: list[int] = []
        self.moving: list[int] = []
        self.live_bytes = 0
        self.live: list[int] = []
        self._ring = -1
        self._rings = 0
        self._norms = 0

    def restart(self) -> None:
        """Forget what building the model did."""
        self.ops.clear()
        self.live.clear()
        self.flow = Flow()

    def note(self, kind: str, name: str, inputs: list[Shape], output: Shape, dtype: str, **more: Any) -> int:
        number = len(self.ops)
        at = self.current_stage
        more |= {"ring": self._ring, "id": number, "block": at.block, "module": self.current_module}
        self.ops.append(Op(kind, name, tuple(inputs), output, dtype, at.place, **more))
        self.flow.reads.append(set())
        self.live.append(self.live_bytes)
        return number

    @property
    def owner(self) -> int | None:
        """Return the op that what happens now is part of; None outside regions, or before a region has noted one."""
        last = len(self.ops) - 1
        return last if self.regions and last >= self.regions[-1] else None

    @contextlib.contextmanager
    def region(self, first: int) -> Iterator[None]:
        """Open a block in which aten calls belong to op ``first`` or one noted later."""
        self.regions.append(first)
        try:
            yield
        finally:
            self.regions.pop()

    @contextlib.contextmanager
    def collective(self, name: str, group: Group, *moved: Tensor, **options: int | str) -> Iterator[None]:
        """Note a collective unless it is part of another one; ``ulysses`` only holds others together, each noted."""
        inside_ring = name == "ring_attention"
        first = len(self.ops)
        noted = bool(moved) and group.size > 1 and not self.moving
        if noted:
            if inside_ring:
                self._ring = self._rings
                self._rings = self._rings + 1
            self.note(
                "collective",
                name,
                [tuple(t.shape) for t in moved],
                (),
                short(moved[0].dtype),
                axis=group.axis,
                group=group.name,
                size=group.size,
                topology=group.topology,
                stride=self._stride(group),
                bytes=sum(t.numel() * t.element_size() for t in moved),
            )
            self.flow.takes(first, moved)
            self.moving.append(first)
        self._collectives.append(name)
        try:
            with contextlib.nullcontext() if name == "ulysses" else self.region(first):
                yield
        finally:
            self._collectives.pop()
            if noted:
                self.moving.pop()
                if inside_ring:
                    self._ring = -1

    def _stride(self, group: Group) -> int:
        if not isinstance(group.axis, int):
            return 1
        a, b = (self.mesh.coord(rank)[group.axis] for rank in group.ranks[:2])
        return abs(a - b)

    @contextlib.contextmanager
    def compute(
        self, op: str, *tensors: Tensor, step: int = -1, buffer: str = "-", channels_dim: int = -1, again: bool = False
    ) -> Iterator[None]:
        """Note one op; a norm inside a norm is part of it, as a distributed one on one device is the plain one."""
        norm = op in NORMS
        if norm and self._norms:
            yield
            return
        number = self._declared(op, tensors, step, channels_dim)
        self._norms += norm
        try:
            with self.region(number):
                yield
        finally:
            self._norms -= norm

    def _declared(self, op: str, tensors: tuple[Tensor, ...], step: int, channels_dim: int) -> int:
        """Note the op that a layer says it is.

        Raises:
            UserError: no such op is priced.
        """
        shapes = [tuple(t.shape) for t in tensors]
        dtype = short(tensors[0].dtype)
        x = shapes[0]
        if op in NORMS:
            features = channels_dim % len(x)
            shape = (*x[:features], *x[features + 1 :], x[features])
            return self.note("norm", op, [shape], shape, dtype)
        if op in _PASSES:
            return self.note("elementwise", _PASSES[op], [x], x, dtype)
        if op == "sdpa":
            return self.note("sdpa", op, shapes[:2], x, "bf16", step=step)
        if op == "linear":
            width = sum(s[0] for s in shapes[1:])
            return self.note("matmul", op, [x, (width, shapes[1][-1])], (*x[:-1], width), dtype)
        if op in ("conv2d", "conv3d"):  # of what has its borders already
            out, *kernel = shapes[1]
            rows = x[0] * math.prod(n - k + 1 for n, k in zip(x[2:], kernel[1:], strict=True))
            wide = math.prod(kernel)
            inputs = [(rows, wide), (out, wide)] if op == "conv3d" else [(rows, kernel[0]), (out, *kernel[:2])]
            return self.note("matmul", op, inputs, (rows, out), dtype)
        known = ", ".join((*NORMS, *_PASSES, "linear", "sdpa", "conv2d", "conv3d"))
        raise UserError(f"a layer declares the op '{op}', which has no price; device.compute takes one of {known}.")


_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"}
_REDUCTIONS = {
    *("mean", "sum", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "amax", "logsumexp"),
    *("layer_norm", "group_norm", "rms_norm", "batch_norm", "instance_norm", "softmax", "log_softmax"),
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm", "_softmax", "_log_softmax"),
}
"""aten calls that norms and softmax are made of; outside a declared op the device's own op for it is not known."""
_LAYOUTS = {"cat", "clone", "copy_", "_to_copy", "constant_pad_nd", "stack", "index", "repeat", "flip"}
_FREE = {
    "empty",
    "zeros",
    "full",
    "arange",
    "detach",
    "alias",
    "lift_fresh",
    "zeros_like",
    "empty_like",
    "scalar_tensor",
}


class Recorder(Quick):
    """Notes aten calls that no region claims, and follows all of them."""

    def __init__(self, device: ReadingDevice) -> None:
        super().__init__()
        self._device = device
        self._holders: Counter[int] = Counter()
        self.peak_bytes = 0

    def _hold(self, tensor: Tensor) -> None:
        """Count a storage while any tensor that went through here is on it."""
        key = _key(tensor)
        size = tensor.untyped_storage().nbytes()
        self._holders[key] += 1
        if self._holders[key] == 1:
            self._device.live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._device.live_bytes)
            if live := self._device.live:
                live[-1] = max(live[-1], self._device.live_bytes)
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._device.live_bytes -= size
            self._device.flow.forget(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        taken = tensors_of(args)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        made = tensors_of((out,))
        for tensor in made:
            self._hold(tensor)
        device = self._device
        flow = self._device.flow
        if func.is_view:  # or a copy, of what did not lie as asked for
            before = {_key(t) for t in taken}
            flow.writes(flow.writers(taken), [t for t in made if _key(t) not in before])
            return out
        op = device.owner
        name = func.overloadpacket.__name__
        if op is None and not device.regions and (isinstance(out, Tensor) or name in _REDUCTIONS):
            op = self._note(name, taken, made[0])  # a norm also gives its statistics
        if op is None:
            flow.writes(flow.writers(taken), made)
        else:
            flow.takes(op, taken)
            flow.writes([op], made)
        return out

    def _note(self, name: str, tensors: list[Tensor], out: Tensor) -> int | None:
        """Return the op's number, None if the device does nothing."""
        if not tensors or name in _FREE:
            return None
        if name in ("pad", "constant_pad_nd", "_to_copy") and tensors[0].shape == out.shape:
            return None  # nothing to pad; a change of dtype is part of the op that asked for it
        shapes = [tuple(t.shape) for t in tensors]
        shape = tuple(out.shape)
        dtype = short(tensors[-1].dtype)
        note = self._device.note
        if name in _MATMULS:
            x, w = (tensors[1], tensors[2]) if "add" in name else (tensors[0], tensors[1])
            rows, columns = (w.shape[-2], w.shape[-1]) if name == "linear" else (w.shape[-1], w.shape[-2])
            return note("matmul", name, [tuple(x.shape), (rows, columns)], shape, dtype)
        if name == "convolution":
            k = math.prod(tensors[1].shape[1:])
            m = out.numel() // out.shape[1]
            return note("matmul", name, [(m, k), (out.shape[1], k)], (m, out.shape[1]), dtype)
        if name == "scaled_dot_product_attention":
            return note("sdpa", "sdpa", shapes[:2], shape, dtype)
        if name in _LAYOUTS:
            return note("layout", name, shapes, shape, dtype)
        if name in _REDUCTIONS:
            return note("norm", name, shapes, shape, dtype, declared=False)
        return note("elementwise", name, shapes, shape, dtype) if out.numel() > 1 else None


def short(dtype: Dtype) -> str:
    """Return ``bf16``, ``fp32`` (also for fp64, which the device has not), or torch's name."""
    name = str(dtype).removeprefix("torch.")
    return {"bfloat16": "bf16", "float32": "fp32", "float64": "fp32"}.get(name, name)
