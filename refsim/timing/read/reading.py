"""A model read as the list of operations that one device runs: the model's own code on fake tensors, no arithmetic.

    weights and inputs on meta (shapes and dtypes only)
        -> the refsim model, unchanged, as rank r of the mesh
            declared ops           one op each, as on the device: fused QKV, one sdpa per ring step, norms, rope
            any other aten call    elementwise, reduction or layout op; views cost nothing
            collectives            one op each: name, mesh axis, topology, bytes brought

Every rank runs the same ops but for what padding and a Line's ends leave out; rank 0 stands for all.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.base.options import RunOptions
from refsim.base.padded import Padded, noting
from refsim.files.checkpoint import ShapeWeights
from refsim.files.folder import class_name_of
from refsim.models.inputs import Dims, by_name, is_exact, is_per_sample
from refsim.models.registry import find_model, spec_of
from refsim.models.spec import Published
from refsim.parallel.cfg import batch_range, gather_batch
from refsim.timing.read.meta import Quick, on_meta
from refsim.timing.read.recorder import Op, ReadingDevice, Recorder, Shape

__all__ = ["Op", "Reading", "Shape", "read", "read_published"]

_BLOCK = re.compile(r"\w*blocks\.[0-9]+\.")


@dataclass
class Reading:
    """The ops of one device in program order, what its weights and buffers take in bytes, and what it pads."""

    ops: list[Op] = field(default_factory=list)
    weights_bytes: int = 0
    buffer_bytes: int = 0
    peak_activation_bytes: int = 0
    bytes_of_block: Counter[int] = field(default_factory=Counter)
    padded: list[Padded] = field(default_factory=list)

    @property
    def unclassified(self) -> Counter[str]:
        """Return reductions that no layer declared, by name: norms or softmaxes priced as loose ops, one by one."""
        return Counter(op.name for op in self.ops if not op.declared)

    @property
    def blocks(self) -> int:
        return len({op.block for op in self.ops if op.block >= 0})


@dataclass
class Architecture:
    """What ``find_model`` needs of a checkpoint, for a model without weights."""

    config: dict[str, Any]
    folder: Path = Path("published")

    @property
    def class_name(self) -> str:
        return class_name_of(self.config)

    def as_config(self, kind: Any) -> Any:
        """Return the configuration, as a checkpoint gives it."""
        return kind.from_dict(self.config)


def read(
    config: dict[str, Any],
    shapes: dict[str, Shape],
    options: RunOptions,
    *,
    rank: int = 0,
) -> Reading:
    """Return the operations of one forward on device ``rank``.

    Args:
        config: the transformer's ``config.json`` with ``_class_name``.
        shapes: of the diffusers ``forward`` arguments, the whole batch.

    Raises:
        UserError: the model or the configuration does not fit.
    """
    device = ReadingDevice(options, rank)
    storage = options.storage
    architecture = Architecture(config)
    model_class, model_config = find_model(architecture)
    weights = ShapeWeights(storage)
    with on_meta(), torch.inference_mode(), noting() as padded:
        with Quick():
            model = model_class(weights, device, model_config)
        device.restart()
        inputs = model_class.input_shapes(model_config)
        arguments = {name: _argument(device, shape, inputs[name]) for name, shape in shapes.items()}
        with Recorder(device) as recorder:
            for result in by_name(model(**arguments)).values():
                gather_batch(device, result)
    buffers = sum(b.tensor.numel() * b.tensor.element_size() for b in device.buffers.all())
    noted = zip(device.ops, device.flow.reads, device.live, strict=True)
    ops = [replace(op, reads=tuple(sorted(sources)), live=live) for op, sources, live in noted]
    return Reading(ops, weights.bytes_of.total(), buffers, recorder.peak_bytes, _bytes_of_block(weights), list(padded))


def _bytes_of_block(weights: ShapeWeights) -> Counter[int]:
    """Return the bytes of each block's weights; blocks are numbered as built, whatever lists they are in."""
    numbers: dict[str, int] = {}
    sizes: Counter[int] = Counter()
    for name, taken in weights.bytes_of.items():
        if block := _BLOCK.search(name):
            sizes[numbers.setdefault(block[0], len(numbers))] += taken
    return sizes


def _argument(device: ReadingDevice, shape: Shape, dims: Dims) -> Tensor:
    """Return this device's part of an input of ``shape``."""
    start, stop = batch_range(device, shape[0]) if is_per_sample(dims) else (0, shape[0])
    return torch.empty((stop - start, *shape[1:]), dtype=torch.float32 if is_exact(dims) else device.options.storage)


def read_published(model: Published, size: Shape, options: RunOptions, *, batch: int = 2, rank: int = 0) -> Reading:
    """Read a published model at a latent size, see :func:`read`; ``batch`` 2 is both guidance branches.

    Blocks of one kind are alike: two of each kind are read and the second one is repeated.
    """
    spec = spec_of(model)
    shapes = spec.input_shapes(model, size, batch)
    kinds = spec.block_counts(model.config)
    few = {kind: min(count, 2) for kind, count in kinds.items()}
    short = read(spec.with_block_counts(model.config, few), shapes, options, rank=rank)
    blocks: dict[int, list[Op]] = {}
    for op in short.ops:
        blocks.setdefault(op.block, []).append(op)
    if set(blocks) - {-1} != set(range(sum(few.values()))):
        raise UserError(
            f"model '{spec.name}' ran {len(set(blocks) - {-1})} blocks where its spec counts {sum(few.values())}; its "
            "forward calls device.stage(block=number) before every block, and block_counts counts them."
        )
    copies = []
    weights = short.weights_bytes
    done = 0
    for (_, count), (_, recorded) in zip(kinds.items(), few.items(), strict=True):
        weights += (count - recorded) * short.bytes_of_block[done + recorded - 1]
        copies += [blocks[done + min(i, recorded - 1)] for i in range(count)]
        done += recorded
    first = copies[0][0].id
    around = blocks.get(-1, [])
    before = [op for op in around if op.id < first]
    after = [op for op in around if op.id > first]
    return replace(short, ops=_joined(before, copies, after), weights_bytes=weights)


def _joined(before: list[Op], blocks: list[list[Op]], after: list[Op]) -> list[Op]:
    """Join parts to one program, renumbered."""
    joined: list[Op] = []
    now: dict[int, int] = {}  # number in the short program -> number of its last copy
    rings = 0
    for index, part in enumerate((before, *blocks, after)):
        again = part is not before and part is not after and index > 1 and part is blocks[index - 2]
        start = len(joined)
        previous = part[0].id - len(part) if part else 0
        used = sorted({op.ring for op in part if op.ring >= 0})
        numbers = {op.id: start + i for i, op in enumerate(part)}
        copied = []
        for op in part:
            sources = [
                numbers[r] if r in numbers else now[r + len(part) if again and r >= previous else r] for r in op.reads
            ]
            copied.append(
                replace(
                    op,
                    id=numbers[op.id],
                    reads=tuple(sorted(set(sources))),
                    stage=f"block {index - 1}" if op.block >= 0 else op.stage,
                    block=index - 1 if op.block >= 0 else -1,
                    ring=used.index(op.ring) + rings if op.ring >= 0 else -1,
                )
            )
        joined += copied
        now |= numbers
        rings += len(used)
    return joined
