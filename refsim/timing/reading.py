"""A model read as the list of operations that one device runs: the model's own code on fake tensors, no arithmetic.

    fake weights and inputs (shapes and dtypes only)
        -> the refsim model, unchanged, as rank r of the mesh
            compute regions        one op each, as on the device: fused QKV, one sdpa per ring step
            norms, rope, ...       one op per call of a layer that TTNN has an op for
            any other aten call    elementwise, reduction or layout op; views cost nothing
            collectives            one op each: name, mesh axis, topology, bytes brought

Every rank runs the same ops but for what padding and a Line's ends leave out; rank 0 stands for all.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from refsim.checkpoint import Range, Weights
from refsim.config import DiTParallelConfig
from refsim.layers import norm, rope
from refsim.mesh import MeshSpec, Topology
from refsim.models.published import PublishedModel, input_shapes
from refsim.models.registry import find_model
from refsim.parallel.cfg import batch_range, gather_batch
from refsim.parallel.sdpa import SDPAProgramConfig
from refsim.parallel.usp import AttentionOptions
from refsim.runtime.device import Device
from refsim.runtime.group import Group

Shape = tuple[int, ...]
_WHOLE = 1 << 40
_BLOCK = re.compile(r"blocks\.([0-9]+)\.")
_STORAGE = {"bf16": torch.bfloat16, "fp32": torch.float32}

FUSED: dict[tuple[Any, str], str] = {
    (norm.RMSNorm, "__call__"): "rms_norm",
    (norm.DistributedRMSNorm, "__call__"): "rms_norm",
    (norm.LayerNorm, "__call__"): "layer_norm",
    (norm.DistributedLayerNorm, "__call__"): "layer_norm",
}
"""Calls that are one op on the device though their reference is several aten calls."""


@dataclass(frozen=True)
class Op:
    """One operation of one device.

    Attributes:
        kind: ``matmul``, ``sdpa``, ``norm``, ``elementwise``, ``layout`` or ``collective``.
        name: ``linear``, ``sdpa``, an aten name, or the collective's.
        inputs, output: shapes; of a matmul (..., M, K) and (N, K), of sdpa q (B, H, M, E) and k (B, H, N, E).
        dtype: storage dtype of the inputs.
        stage: ``block 3``, or what the model said last.
        axis, size, topology, bytes: of a collective: mesh axis, members, Ring or Line, bytes this device brings.
        ring, step: the ring attention an op belongs to (its sdpa steps overlap its transfer), -1 elsewhere.
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


@dataclass
class Reading:
    """The ops of one device in program order, and what its weights and buffers take in bytes."""

    ops: list[Op] = field(default_factory=list)
    weights_bytes: int = 0
    buffer_bytes: int = 0
    peak_activation_bytes: int = 0
    bytes_of_block: Counter[int] = field(default_factory=Counter)

    @property
    def blocks(self) -> int:
        return len({op.stage for op in self.ops if op.stage.startswith("block ")})


@dataclass
class Architecture:
    """What ``find_model`` needs of a checkpoint, for a model without weights."""

    config: dict[str, Any]
    folder: Path = Path("published")

    @property
    def class_name(self) -> str:
        return str(self.config["_class_name"])


class FakeWeights(Weights):
    """Any tensor in any shape, nothing read; counts bytes."""

    def __init__(self, dtype: torch.dtype, whole: FakeWeights | None = None) -> None:
        self._dtype, self.bytes, self._whole = dtype, 0, whole or self
        self.bytes_of_block: Counter[int] = Counter()

    def to(self, dtype: torch.dtype) -> FakeWeights:
        """In another dtype; bytes count for the weights this was called on."""
        return FakeWeights(dtype, self._whole)

    def take(self, name: str, shape: Shape, *ranges: Range | None) -> Tensor:
        whole = [(0, size) for size in shape]
        cut = [given or all_ for given, all_ in zip((*ranges, *[None] * len(shape)), whole, strict=False)]
        found = torch.empty([b - a for a, b in cut], dtype=self._dtype)
        taken = found.numel() * found.element_size()
        self._whole.bytes += taken
        if block := _BLOCK.search(name):
            self._whole.bytes_of_block[int(block[1])] += taken
        return found

    def leave(self, *prefixes: str) -> None:
        """Nothing to leave."""

    def finish(self, model: str) -> None:
        """Nothing can be left over."""


class _Nothing:
    """A transfer that is complete, and the transport that posts only such."""

    rank, world_size = 0, 1

    def wait(self) -> None: ...

    def isend(self, tensor: Tensor, dst: int, channel: int = 0) -> _Nothing:
        return self

    irecv = isend


class ReadingDevice(Device):
    """A device that notes its ops instead of running them."""

    def __init__(self, mesh: MeshSpec, config: DiTParallelConfig, rank: int = 0) -> None:
        super().__init__(mesh, config, rank, _Nothing())
        self.ops: list[Op] = []
        self.depth = 0
        self._stage = ""
        self._ring, self._rings = -1, 0

    def note(self, kind: str, name: str, inputs: list[Shape], output: Shape, dtype: str, **more: Any) -> None:
        self.ops.append(Op(kind, name, tuple(inputs), output, dtype, self._stage, ring=self._ring, **more))

    def status(self, text: str) -> None:
        if text.startswith("running "):
            self._stage = text.removeprefix("running ")

    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        """Aten calls inside belong to an op that is noted otherwise."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextlib.contextmanager
    def collective(self, name: str, group: Group, *moved: Tensor) -> Iterator[None]:
        inside_ring = name == "ring_attention"
        outer = not any(c for c in self._collectives if c != "ring_attention")
        if moved and group.size > 1 and outer and self._ring < 0:
            if inside_ring:
                self._ring, self._rings = self._rings, self._rings + 1
            self.note(
                "collective",
                name,
                [tuple(t.shape) for t in moved],
                (),
                _short(moved[0].dtype),
                axis=group.axis,
                size=group.size,
                topology=group.topology,
                bytes=sum(t.numel() * t.element_size() for t in moved),
            )
        self._collectives.append(name)
        try:
            with self.region():
                yield
        finally:
            self._collectives.pop()
            if inside_ring:
                self._ring = -1

    @contextlib.contextmanager
    def compute(self, op: str, *tensors: Tensor, step: int = -1, buffer: str = "-") -> Iterator[None]:
        shapes = [tuple(t.shape) for t in tensors]
        if op == "sdpa":
            self.note("sdpa", op, shapes[:2], shapes[0], "bf16", step=step)
        else:
            lanes = sum(s[0] for s in shapes[1:])
            self.note(
                "matmul", op, [shapes[0], (lanes, shapes[1][-1])], (*shapes[0][:-1], lanes), _short(tensors[0].dtype)
            )
        with self.region():
            yield


_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"}
_REDUCTIONS = {"mean", "sum", "var_mean", "native_layer_norm", "native_group_norm", "_softmax", "amax"}
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


class _Recorder(TorchDispatchMode):
    """Notes aten calls that no region claims."""

    def __init__(self, device: ReadingDevice) -> None:
        super().__init__()
        self._device = device
        self._holders: Counter[int] = Counter()
        self._live = self.peak_bytes = 0

    def _hold(self, tensor: Tensor) -> None:
        """Counts a storage while any tensor that went through here is on it."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self._holders[key] += 1
        if self._holders[key] == 1:
            self._live += size
            self.peak_bytes = max(self.peak_bytes, self._live)
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._live -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(tensor, Tensor):
                self._hold(tensor)
        if self._device.depth == 0 and isinstance(out, Tensor):
            self._note(func, args, out)
        return out

    def _note(self, func: Any, args: Any, out: Tensor) -> None:
        name = func.overloadpacket.__name__
        tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, Tensor)]
        if not tensors or name in _FREE or func.is_view:
            return
        if name in ("pad", "constant_pad_nd", "_to_copy") and tensors[0].shape == out.shape:
            return  # nothing to pad; a change of dtype is part of the op that asked for it
        shapes, shape = [tuple(t.shape) for t in tensors], tuple(out.shape)
        dtype = _short(tensors[-1].dtype)
        if name in _MATMULS:
            x, w = (tensors[1], tensors[2]) if "add" in name else (tensors[0], tensors[1])
            self._device.note("matmul", name, [tuple(x.shape), (w.shape[-1], w.shape[-2])], shape, dtype)
        elif name == "convolution":
            k = math.prod(tensors[1].shape[1:])
            m = out.numel() // out.shape[1]
            self._device.note("matmul", name, [(m, k), (out.shape[1], k)], (m, out.shape[1]), dtype)
        elif name in _LAYOUTS:
            self._device.note("layout", name, shapes, shape, dtype)
        elif name in _REDUCTIONS:
            self._device.note("norm", name, shapes, shape, dtype)
        elif out.numel() > 1:
            self._device.note("elementwise", name, shapes, shape, dtype)


@contextlib.contextmanager
def _fused(device: ReadingDevice) -> Iterator[None]:
    """While open, the calls of ``FUSED`` are one op each; collectives inside them are noted as usual."""
    with contextlib.ExitStack() as stack:
        for (owner, attribute), name in FUSED.items():
            original = getattr(owner, attribute)

            def call(self: Any, x: Any, *args: Any, _call=original, _name=name, **kwargs: Any) -> Any:
                local = getattr(x, "local", x)
                device.note("norm", _name, [tuple(local.shape)], tuple(local.shape), _short(local.dtype))
                with device.region():
                    return _call(self, x, *args, **kwargs)

            stack.enter_context(mock.patch.object(owner, attribute, call))
        rotate = rope.apply_rotary

        def rotary(x: Tensor, *tables: Tensor) -> Tensor:
            device.note("elementwise", "rotary_embedding", [tuple(x.shape)], tuple(x.shape), _short(x.dtype))
            with device.region():
                return rotate(x, *tables)

        for name, module in list(sys.modules.items()):
            if name.startswith("refsim.models.") and getattr(module, "apply_rotary", None) is rotate:
                stack.enter_context(mock.patch.object(module, "apply_rotary", rotary))
        yield


def read(
    config: dict[str, Any],
    shapes: dict[str, Shape],
    mesh: MeshSpec,
    parallel: DiTParallelConfig,
    *,
    dtype: str = "bf16",
    split_prompt: bool = False,
    rank: int = 0,
) -> Reading:
    """The operations of one forward on device ``rank``.

    Args:
        config: the transformer's ``config.json`` with ``_class_name``.
        shapes: of the diffusers ``forward`` arguments, the whole batch.
        dtype: storage, ``bf16`` or ``fp32``.

    Raises:
        UserError: the model or the configuration does not fit.
    """
    device = ReadingDevice(mesh, parallel, rank)
    storage = _STORAGE[dtype]
    architecture = Architecture(config)
    model_class, model_config = find_model(architecture)
    options = AttentionOptions("step", True, SDPAProgramConfig(_WHOLE, _WHOLE))
    weights = FakeWeights(storage)
    with FakeTensorMode(), _fused(device), torch.inference_mode():
        model = model_class(weights, device, model_config, options=options, split_prompt=split_prompt)
        device.ops.clear()
        arguments = {}
        for name, shape in shapes.items():
            start, stop = batch_range(device, shape[0])
            arguments[name] = torch.empty(
                (stop - start, *shape[1:]), dtype=storage if len(shape) > 1 else torch.float32
            )
        with _Recorder(device) as recorder:
            gather_batch(device, model(**arguments))
    buffers = sum(b.tensor.numel() * b.tensor.element_size() for b in device.buffers.all())
    return Reading(device.ops, weights.bytes, buffers, recorder.peak_bytes, weights.bytes_of_block)


def read_published(
    model: PublishedModel, size: Shape, mesh: MeshSpec, parallel: DiTParallelConfig, *, batch: int = 2, **options: Any
) -> Reading:
    """:func:`read` for a published model at a latent size; ``batch`` 2 is both guidance branches.

    Blocks of one kind are alike: two of each kind are read and the second one is repeated.
    """
    shapes = input_shapes(model, size, batch)
    kinds = _block_kinds(model.config)
    few = [(kind, min(count, 2)) for kind, count in kinds]
    config = dict(model.config) | {"num_layers": sum(count for _, count in few)}
    if "dual_attention_layers" in config:
        config["dual_attention_layers"] = tuple(range(few[0][1])) if kinds[0][0] == "dual" else ()
    short = read(config, shapes, mesh, parallel, **options)
    blocks: dict[str, list[Op]] = {}
    for op in short.ops:
        blocks.setdefault(op.stage, []).append(op)
    ops, weights, done, index, rings = list(blocks.pop("", [])), short.weights_bytes, 0, 0, 0
    for (_, count), (_, kept) in zip(kinds, few, strict=True):
        weights += (count - kept) * short.bytes_of_block[done + kept - 1]
        for i in range(count):
            source = blocks[f"block {done + min(i, kept - 1)}"]
            first = min((op.ring for op in source if op.ring >= 0), default=0)
            used = len({op.ring for op in source if op.ring >= 0})
            ops += [
                replace(op, stage=f"block {index}", ring=op.ring - first + rings if op.ring >= 0 else -1)
                for op in source
            ]
            rings, index = rings + used, index + 1
        done += kept
    ops += [op for stage, rest in blocks.items() if not stage.startswith("block ") for op in rest]
    return replace(short, ops=ops, weights_bytes=weights)


def _block_kinds(config: dict[str, Any]) -> list[tuple[str, int]]:
    """Kinds of blocks in order, and how many of each."""
    count = config["num_layers"]
    if config["_class_name"] != "SD3Transformer2DModel":
        return [("block", count)]
    dual = len(config["dual_attention_layers"])
    return [kind for kind in (("dual", dual), ("joint", count - 1 - dual), ("last", 1)) if kind[1]]


def _short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp32"}.get(dtype, str(dtype)[6:])
