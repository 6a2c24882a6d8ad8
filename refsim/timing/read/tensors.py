"""What a profiler's row or a captured program says of one tensor of an operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BYTES = {"bf16": 2.0, "fp32": 4.0, "bfp8": 1088 / 1024, "bfp4": 576 / 1024, "uint32": 4.0, "uint8": 1.0}
"""Bytes per element in tiles; block floats carry one exponent byte per 16 (blockfloat_common.cpp)."""
DTYPES = {
    "BFLOAT16": "bf16", "FLOAT32": "fp32", "BFLOAT8_B": "bfp8", "BFLOAT4_B": "bfp4", "UINT32": "uint32",
    "INT32": "uint32", "UINT16": "bf16", "UINT8": "uint8", "FP8_E4M3": "uint8",
}  # fmt: skip
"""ttnn's names of dtypes, as those of :data:`BYTES` that have as many bytes."""


@dataclass(frozen=True)
class OpTensor:
    """One operand or result on one device.

    Attributes:
        shape: four dims in elements, tile padding included.
        dtype: a key of :data:`BYTES`; ttnn's own name where that has no entry.
        memory: as the profiler writes it, e.g. ``DEV_0_DRAM_INTERLEAVED``.
        layout: ``TILE`` or ``ROW_MAJOR``.
        rows: of the third dim without padding.
    """

    shape: tuple[int, int, int, int]
    dtype: str
    memory: str
    layout: str
    rows: int = 0

    @property
    def numel(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2] * self.shape[3]

    @property
    def nbytes(self) -> float:
        return self.numel * BYTES[self.dtype]

    @property
    def in_l1(self) -> bool:
        return "L1" in self.memory

    @property
    def sharded(self) -> bool:
        """Whether it lies in the L1 of the cores that use it."""
        return self.in_l1 and "SHARDED" in self.memory

    @property
    def place(self) -> Literal["dram", "l1", "own"]:
        """Return where it lies, as a product's formula has it."""
        return "own" if self.sharded else "l1" if self.in_l1 else "dram"

    @property
    def pages(self) -> int:
        """Return the number of pages, what is read or written at once: a tile or a row."""
        return self.numel // (1024 if self.layout == "TILE" else max(self.shape[3], 1))
