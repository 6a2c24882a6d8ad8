"""What one device's DRAM holds: weights, activations at their peak, persistent buffers of the collectives."""

from __future__ import annotations

from dataclasses import dataclass

from refsim.config import DiTParallelConfig
from refsim.timing.chips import Chip
from refsim.timing.reading import Reading

PING_PONG = 2
"""Blocks whose gathered weights are held at once: the one in use and the one on its way."""
RESERVED = 0.06
"""Share of DRAM for programs, traces and what the allocator cannot use."""


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


def memory(
    reading: Reading, chip: Chip, parallel: DiTParallelConfig, *, experts: int = 1, fsdp: bool | None = None
) -> Memory:
    """Memory with all ``experts`` in place; ``fsdp`` None cuts weights over sp only where they do not fit otherwise."""
    capacity = chip.dram_gbytes * 1e9 * (1 - RESERVED)
    buffers = reading.buffer_bytes  # the model asks for both of a pair
    weights = reading.weights_bytes * experts
    whole = Memory(weights, reading.peak_activation_bytes, buffers, capacity)
    if fsdp is False or parallel.sp == 1 or (fsdp is None and whole.fits):
        return whole
    largest = reading.weights_bytes / max(reading.blocks, 1)
    cut = weights / parallel.sp + PING_PONG * largest
    return Memory(cut, reading.peak_activation_bytes, buffers, capacity, True)
