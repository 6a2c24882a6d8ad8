"""The compute config of a kernel, and the units under it.

L1 (bf16, bfp8_b, bfp4_b, fp32) --> matrix unit, vector unit --> destination (16 or 32 bits) --> packer --> L1
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from refsim.numerics.eltwise import eltwise
from refsim.numerics.formats import flush, truncate
from refsim.numerics.matrix_unit import TILE, matmul
from refsim.numerics.packer import pack
from refsim.numerics.reduce import reduce
from refsim.numerics.sfpu import sfpu
from refsim.numerics.vector_unit import VectorUnit


@dataclass(frozen=True)
class Compute:
    """A kernel's compute config, as ttnn's ``WormholeComputeKernelConfig`` has it, with chip and level.

    Attributes:
        fidelity: ``LoFi`` ... ``HiFi4`` (``math_fidelity``).
        fp32_dest_acc_en: the destination has 32 bits.
        packer_l1_acc: K blocks are added by the packer.
        approximate: functions take their cheap variant (``math_approx_mode``).
        arch: ``wormhole_b0`` or ``blackhole``.
        level: ``exact`` or ``fast``.
    """

    fidelity: str = "HiFi4"
    fp32_dest_acc_en: bool = False
    packer_l1_acc: bool = False
    approximate: bool = False
    arch: str = "wormhole_b0"
    level: str = "fast"

    @property
    def l1_dtype(self) -> str:
        """Return the dtype of intermediate results in L1: as wide as the destination."""
        return "float32" if self.fp32_dest_acc_en else "bfloat16"

    def _unit(self) -> dict:
        return {"fp32_dest_acc_en": self.fp32_dest_acc_en, "arch": self.arch, "level": self.level}

    def matmul(self, in0: Tensor, in1: Tensor, start: Tensor | None = None) -> Tensor:
        """Multiply (M, K) by (K, N) into the destination, which may hold ``start`` before."""
        return matmul(in0, in1, fidelity=self.fidelity, start=start, **self._unit())

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Add on the matrix unit."""
        return eltwise("add", a, b, **self._unit())

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """Subtract on the matrix unit."""
        return eltwise("sub", a, b, **self._unit())

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply on the matrix unit."""
        return eltwise("mul", a, b, fidelity=self.fidelity, **self._unit())

    def reduce(
        self, operation: str, x: Tensor, dim: str = "last", scaler: float | None = None, dtype: str = "bfloat16"
    ) -> Tensor:
        """Reduce on the matrix unit; ``dtype`` is that of ``x``."""
        unit = self._unit()
        return reduce(operation, x, dim=dim, scaler=scaler, dtype=dtype, fidelity=self.fidelity, **unit)

    def reduce_both(self, x: Tensor, factor: float, dtype: str) -> Tensor:
        """Sum (..., M, N) over both dims as ``ttnn.sum`` does: rows, packed as ``dtype``, then columns times a factor.

        A single tile, unless its factor is negative, goes in one. The result is what the destination holds.
        """
        if x.shape[:-2].numel() == 1 and max(x.shape[-2:]) <= TILE and factor >= 0:
            return self.reduce("sum", x, "both", factor, dtype)
        return self.reduce("sum", self.store(self.reduce("sum", x), dtype), "second_last", factor, dtype)

    def sfpu(self, function: str, x: Tensor) -> Tensor:
        """Apply a function of the vector unit to what the destination holds."""
        return sfpu(function, x, approximate=self.approximate, **self._unit())

    def vector(self) -> VectorUnit:
        """Return the vector unit for multiply-adds of a kernel's own."""
        return VectorUnit(self.arch, self.level, self.fp32_dest_acc_en)

    def store(self, x: Tensor, dtype: str | None = None) -> Tensor:
        """Pack the destination into L1, by default as an intermediate result."""
        dtype = dtype or self.l1_dtype
        return flush(x) if dtype == "float32" else pack(x, dtype)


def by_rows(x: Tensor) -> Tensor:
    """Return (..., N) as (rows, N)."""
    return x.reshape(-1, x.shape[-1])


def reloaded(x: Tensor) -> Tensor:
    """Return what copying a tile from L1 puts into the destination: float32 is cut to TF32."""
    return truncate(x, 10)


def zeros_to(x: Tensor, dim: int, multiple: int) -> Tensor:
    """Fill a dim up with zeros to a multiple, as a tiled layout does."""
    missing = -x.shape[dim] % multiple
    pads = [0, 0] * (x.dim() - 1 - dim % x.dim()) + [0, missing]
    return torch.nn.functional.pad(x, pads)
