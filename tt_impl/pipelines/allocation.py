"""DRAM and L1 of a whole model on a mesh, from ttnn's own allocator; needs shapes, not weights.

    weights      the model is built: every tensor is allocated, none is filled
    persistent   one forward of one block of each kind: what stays are the collectives' buffers and what the model keeps
    transient    the same forward captured without dispatch: the highest level above that, and the operation there

Blocks of a kind take the same, so one of each is enough. Counterpart of nothing in ``refsim``: only a device has an
allocator. All cfg groups are alike, so the first one's submesh is measured (a submesh has an allocator of its own, and
all its devices hold the same).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import ttnn

from refsim.base.errors import InvariantError, UserError
from refsim.base.options import RunOptions
from refsim.files.checkpoint import ShapeWeights
from refsim.files.folder import class_name_of
from refsim.files.keys import as_json
from refsim.models.registry import get
from refsim.models.spec import ModelSpec, resolve
from tt_impl.blocks.stack import holder_of_blocks
from tt_impl.parallel.context import Context
from tt_impl.pipelines.transformer import submeshes
from tt_impl.reports.memory import L1, CfgGroup
from tt_impl.trace.graph import capturing
from tt_impl.trace.usage import Usage, usage


@dataclass(frozen=True)
class Level:
    """What the allocator of DRAM says about one device, in bytes: all banks together."""

    total: int
    allocated: int
    largest_free: int

    @classmethod
    def of(cls, device: ttnn.MeshDevice) -> Level:
        view = ttnn.get_memory_view(device, ttnn.BufferType.DRAM)
        per_bank = (
            view.total_bytes_per_bank,
            view.total_bytes_allocated_per_bank,
            view.largest_contiguous_bytes_free_per_bank,
        )
        return cls(*(view.num_banks * n for n in per_bank))


@dataclass(frozen=True)
class Subject:
    """A model to be measured: whose, which one, and what it is fed.

    Attributes:
        shapes: the shapes of its inputs by name.
    """

    spec: ModelSpec
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, model: dict[str, Any] | str, shapes: dict[str, list[int]]) -> Subject:
        """``model`` is a published name or a config.json."""
        if isinstance(model, dict):
            spec = get(class_name_of(model))
            config = model
        else:
            spec = get(model)
            config = next(p.config for p in spec.published if p.name == model)
        if spec.ttnn is None:
            raise UserError(f"{class_name_of(config)} has no counterpart in TTNN, so nothing can be allocated.")
        return cls(spec, config, {name: tuple(shape) for name, shape in shapes.items()})

    def counts(self) -> dict[str, int]:
        """How many blocks of each kind there are; empty for what has none."""
        return self.spec.block_counts(self.config) if self.spec.kind == "transformer" else {}

    def with_counts(self, counts: dict[str, int]) -> Subject:
        """Return the subject with other numbers of blocks."""
        return Subject(self.spec, self.spec.with_block_counts(self.config, counts), self.shapes)

    def build(self, ctx: Context, weights: ShapeWeights) -> Any:
        """Build the model on a submesh."""
        return resolve(self.spec.ttnn)(weights, ctx, self.spec.config_class.from_dict(self.config))

    def feed(self, model: Any) -> None:
        """One forward on zeros, its result dropped."""
        dtype = torch.int64 if self.spec.kind == "text_encoder" else torch.float32
        model(**{name: torch.zeros(shape, dtype=dtype) for name, shape in self.shapes.items()})


def program(
    device: ttnn.MeshDevice, options: RunOptions, *, model: dict[str, Any] | str, shapes: dict[str, list[int]]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Allocate ``model`` (config.json or a published name) and run one forward of one block of each kind.

    The report has one entry under ``groups``, for the first cfg group: a :class:`tt_impl.reports.memory.CfgGroup`.
    """
    subject = Subject.of(model, shapes)
    submesh = submeshes(device, options)[0]
    weights = ShapeWeights(torch.bfloat16)
    ctx = Context(submesh, options)
    started = time.monotonic()
    built = subject.build(ctx, weights)
    loaded = Level.of(submesh)
    built_s = round(time.monotonic() - started, 2)
    started = time.monotonic()
    with one_of_each(built, subject.counts()):
        subject.feed(built)
        level = Level.of(submesh)
        taken = captured(subject, built, submesh)
    seconds = {"build_s": built_s, "forward_s": round(time.monotonic() - started, 2)}
    sizes = (level.allocated, loaded.allocated, weights.parameters, level.largest_free)
    return {"model": subject.config, "groups": [_group(ctx, taken, *sizes, **seconds)], "fits": True}, {}


def needs(
    device: ttnn.MeshDevice, options: RunOptions, *, model: dict[str, Any] | str, shapes: dict[str, list[int]]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Report as :func:`program` does on a transformer that does not fit: nothing large is really allocated.

    Weights are those of one block of each kind and, for every further one, the difference that one more makes.
    """
    subject = Subject.of(model, shapes)
    submesh = submeshes(device, options)[0]
    counts = subject.counts()
    if not counts:
        raise UserError(f"{subject.spec.name} has no blocks of which one would stand for all.")
    one = dict.fromkeys(counts, 1)
    total = _weights_of(subject.with_counts(one), submesh, options)
    smallest = total
    for kind, count in counts.items():
        if count > 1:
            larger = _weights_of(subject.with_counts(one | {kind: 2}), submesh, options)
            total = tuple(t + (count - 1) * (b - a) for t, a, b in zip(total, smallest, larger, strict=True))
    ctx = Context(submesh, options)
    taken = captured(subject, subject.with_counts(one).build(ctx, ShapeWeights(torch.bfloat16)), submesh)
    group = _group(ctx, taken, total[0] + taken.remaining, *total, largest_free=0)
    return {"model": subject.config, "groups": [group], "fits": False}, {}


@contextmanager
def one_of_each(model: Any, counts: dict[str, int]) -> Iterator[None]:
    """Run one block of each kind of a model, in the order of ``counts``."""
    holder = holder_of_blocks(model)
    blocks = getattr(holder, "_blocks", [])
    if counts and len(blocks) != sum(counts.values()):
        raise InvariantError(f"the model has {len(blocks)} blocks but its spec counts {counts}")
    if counts:
        holder._blocks = [
            blocks[stop - count] for stop, count in zip(accumulate(counts.values()), counts.values(), strict=True)
        ]
    try:
        yield
    finally:
        if counts:
            holder._blocks = blocks


def captured(subject: Subject, model: Any, device: ttnn.MeshDevice) -> Usage:
    """Measure what a forward takes, from a capture without dispatch."""
    with capturing(dispatch=False, calls=True) as nodes:
        subject.feed(model)
    return usage(nodes, device)


def _weights_of(subject: Subject, submesh: ttnn.MeshDevice, options: RunOptions) -> tuple[int, int]:
    """(bytes of one device, parameters) of a model that is built and dropped."""
    before = Level.of(submesh).allocated
    weights = ShapeWeights(torch.bfloat16)
    built = subject.build(Context(submesh, options), weights)
    taken = Level.of(submesh).allocated - before
    del built
    gc.collect()
    return taken, weights.parameters


def _group(
    ctx: Context, taken: Usage, persistent: int, weights: int, parameters: int, largest_free: int, **seconds: float
) -> dict[str, Any]:
    """``taken`` is of a forward that found ``persistent`` bytes in place, those it kept itself included."""
    total = Level.of(ctx.device).total
    peak = persistent + taken.peak.size - taken.remaining
    group = CfgGroup(
        shape=list(ctx.device.shape),
        parameters=parameters,
        total=total,
        weights=weights,
        persistent=persistent,
        peak=peak,
        peak_op=taken.peak.op,
        headroom=total - peak,
        largest_free=largest_free,
        l1=_l1(ctx.device, taken),
        owners=_owners(ctx, persistent - weights),
        **seconds,
    )
    return as_json(group)


def _l1(device: ttnn.MeshDevice, taken: Usage) -> L1:
    """Return what the fullest core holds."""
    view = ttnn.get_memory_view(device, ttnn.BufferType.L1)
    persistent = max(taken.l1_remaining, view.total_bytes_allocated_per_bank)
    peak = taken.l1_peak.size + persistent - taken.l1_remaining
    total = view.total_bytes_per_bank
    tensors = taken.l1_tensors + persistent - taken.l1_remaining
    return L1(total, persistent, peak, taken.l1_peak.op, tensors, total - peak)


def _owners(ctx: Context, size: int) -> list[dict[str, Any]]:
    """Who keeps ``size`` bytes of DRAM after a forward: the collectives' buffers, and what the model itself keeps."""
    owners = ctx.ccl.owned()
    rest = size - sum(owner["bytes"] for owner in owners)
    return owners + (
        [{"owner": "kept by the model", "axis": None, "shape": [], "count": 1, "bytes": rest}] if rest else []
    )
