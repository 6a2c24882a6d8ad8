"""Count what one device's DRAM holds: weights, activations at their peak, persistent buffers of the collectives.

Two accounts stand beside each other: :func:`memory` from the ops read off the model, for any mesh, and
:func:`read_ttnn` from the allocator of ttnn itself, which ``refsim memory --json`` asks without hardware.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refsim.base.config import DiTParallelConfig, parse_parallel
from refsim.base.errors import RefsimError, UserError
from refsim.base.mesh import MeshSpec, get_mesh
from refsim.files.keys import Sometimes
from refsim.timing.cost.chips import Chip
from refsim.timing.read.reading import Reading

PING_PONG = 2
"""Blocks whose gathered weights are held at once: the one in use and the one on its way."""
GIB = 2**30
RESERVED = 0.02
"""Share of DRAM left for programs, traces and gaps; ttnn's allocator itself gives out 99.9 % (reports/ttnn_memory)."""


@dataclass
class Allocated:
    """1e9 bytes per device, of ttnn's allocator."""

    ran: str
    weights: float
    buffers: float
    transient: float
    capacity: float


@dataclass
class MemoryGb:
    """1e9 bytes per device."""

    weights: float
    activations: float
    buffers: float
    capacity: float
    fsdp: bool
    fits: bool
    ttnn: Sometimes[Allocated] = None


@dataclass(frozen=True)
class Memory:
    """Bytes of one device; ``fsdp``: block weights are also cut over sp and gathered where they are used."""

    weights: float
    activations: float
    buffers: float
    capacity: float
    fsdp: bool = False

    @property
    def total(self) -> float:
        return self.weights + self.activations + self.buffers

    @property
    def fits(self) -> bool:
        return self.total <= self.capacity

    def gb(self) -> MemoryGb:
        """Return the same as a result."""
        weights, activations, buffers = (size / 1e9 for size in (self.weights, self.activations, self.buffers))
        return MemoryGb(weights, activations, buffers, self.capacity / 1e9, self.fsdp, self.fits)


def memory(
    reading: Reading, chip: Chip, parallel: DiTParallelConfig, *, experts: int = 1, fsdp: bool | None = None
) -> Memory:
    """Return the memory with all ``experts``; ``fsdp`` None cuts weights over sp only where they do not fit whole."""
    capacity = chip.dram_gbytes * GIB * (1 - RESERVED)  # the chips' banks are GiB
    buffers = reading.buffer_bytes  # the model asks for both of a pair
    weights = reading.weights_bytes * experts
    whole = Memory(weights, reading.peak_activation_bytes, buffers, capacity)
    if fsdp is False or parallel.sp == 1 or (fsdp is None and whole.fits):
        return whole
    largest = reading.weights_bytes / max(reading.blocks, 1)
    cut = weights / parallel.sp + PING_PONG * largest
    return Memory(cut, reading.peak_activation_bytes, buffers, capacity, True)


@dataclass(frozen=True)
class TtnnMemory:
    """Bytes of one device as ttnn allocated them for one forward of a whole model; ``ran`` says where.

    ``buffers`` are the collectives' persistent ones, ``transient`` what lived beside them at the peak.
    """

    ran: str
    model: dict[str, Any]
    mesh: MeshSpec
    parallel: DiTParallelConfig
    weights: int
    buffers: int
    transient: int
    capacity: int

    @property
    def total(self) -> int:
        return self.weights + self.buffers + self.transient

    def gb(self) -> Allocated:
        """Return the same as a result."""
        sizes = (self.weights, self.buffers, self.transient, self.capacity)
        return Allocated(self.ran, *(size / 1e9 for size in sizes))


def read_ttnn(path: Path) -> TtnnMemory:
    """Read a report that ``refsim memory --json`` printed; of its groups the fullest counts.

    Raises:
        UserError: the file holds no such report.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        mesh = get_mesh(report["mesh"])
        parallel = parse_parallel(report["parallel"], mesh)
        g = max(report["groups"], key=lambda group: group["peak"])
        buffers = g["persistent"] - g["weights"]
        transient = g["peak"] - g["persistent"]
        return TtnnMemory(report["ran"], report["model"], mesh, parallel, g["weights"], buffers, transient, g["total"])
    except (OSError, ValueError, KeyError, TypeError, RefsimError) as error:
        raise UserError(
            f"{path} is no report of ttnn's memory; write one with `refsim memory MODEL --json > FILE`."
        ) from error


def check_ttnn(allocated: TtnnMemory, config: dict[str, Any], mesh: MeshSpec, parallel: DiTParallelConfig) -> None:
    """Raise ``UserError`` unless the report is of this model on this mesh."""
    sizes = ("num_layers", "num_attention_heads", "attention_head_dim", "caption_projection_dim")
    if any(config.get(name) != allocated.model.get(name) for name in sizes):
        raise UserError("the report of ttnn's memory is of another model; run `refsim memory` for this one.")
    if (allocated.mesh.name, allocated.parallel) != (mesh.name, parallel):
        raise UserError(
            f"the report of ttnn's memory is of another mesh or configuration ({allocated.ran}); "
            f"run `refsim memory MODEL --mesh {mesh.name}` with this configuration."
        )
