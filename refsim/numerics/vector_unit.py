"""The vector unit (SFPU): one multiply-add, and what its functions do to the bits of float32 values.

    x * y    24 x 24 bits, cut to 26 bits behind the point of the operands' mantissas, the rest kept as a last bit
      + z    both shifted to the larger exponent, bits lost kept as a last bit unless nothing is left
             the sum rounded to nearest, ties to even; denormals +0

Level ``exact`` does that on integers, compiled; ``fast`` rounds the product and the sum in float32.

Source: ttsim 1.10; `tests/refsim/numerics/test_vector_unit.py` has it once more in Python's integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from refsim.numerics.formats import bits_of, flush, from_bits, round_ties_away
from refsim.numerics.matrix_unit import loops

Value: TypeAlias = Tensor | float


@dataclass(frozen=True)
class VectorUnit:
    """The arithmetic that a function is written in: of which chip, how exactly, and for which destination.

    Attributes:
        arch: ``wormhole_b0`` or ``blackhole``.
        level: ``exact`` or ``fast``.
        wide: the destination has 32 bits.
    """

    arch: str
    level: str
    wide: bool

    def mad(self, x: Value, y: Value, z: Value) -> Tensor:
        """Return x y + z of float32 tensors of one shape and numbers."""
        if self.level == "fast":
            return flush(torch.as_tensor(x * y + z, dtype=torch.float32))
        shape = next(value.shape for value in (x, y, z) if isinstance(value, Tensor))
        operands = []
        for value in (x, y, z):
            value = torch.as_tensor(value, dtype=torch.float32).expand(shape)
            operands.append(bits_of(value.contiguous()).reshape(-1).numpy())
        bits = loops("compiled_vector").multiply_adds(*operands, self.arch == "wormhole_b0")
        return from_bits(torch.from_numpy(bits)).reshape(shape)

    def mul(self, x: Value, y: Value) -> Tensor:
        """Return x y."""
        return self.mad(x, y, 0.0)

    def add(self, x: Value, y: Value) -> Tensor:
        """Return x + y."""
        return self.mad(x, 1.0, y)

    def polynomial(self, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        """Return the sum of coefficients times powers of x, the constant first, by Horner's rule."""
        *rest, last = coefficients
        value: Value = last
        for coefficient in reversed(rest):
            value = self.mad(value, x, coefficient)
        return value

    def stored(self, x: Tensor) -> Tensor:
        """Return what a function leaves in the destination: 16 bits are rounded to nearest, ties away."""
        return flush(x) if self.wide else round_ties_away(x, 7)

    def stored_to_even(self, x: Tensor) -> Tensor:
        """Return what is left by kernels that round to bf16 themselves, ties to even: products, quotients, squares."""
        return flush(x if self.wide else x.bfloat16().float())


def exponent_of(x: Tensor) -> Tensor:
    """Return the biased exponent, int32."""
    return bits_of(x) >> 23 & 0xFF


def with_exponent(x: Tensor, exponent: Tensor) -> Tensor:
    """Return float32 values with another biased exponent."""
    return from_bits(bits_of(x) & ~0x7F800000 | exponent << 23)


def with_sign_of(x: Tensor, other: Tensor) -> Tensor:
    """Return the magnitude of ``x`` with the sign of ``other``."""
    return torch.copysign(x, other)


def piecewise_linear(unit: VectorUnit, x: Tensor, ends: tuple[float, ...], lines: tuple) -> Tensor:
    """Return slope |x| + intercept of the segment that |x| is in, as the table instruction does.

    Args:
        unit: the arithmetic.
        x: float32.
        ends: where a segment begins that is not the first one.
        lines: (slope, intercept) of each segment.
    """
    segment = torch.bucketize(x.abs(), torch.tensor(ends), right=True)
    slopes, intercepts = (torch.tensor(column)[segment] for column in zip(*lines, strict=True))
    return unit.mad(slopes, x.abs(), intercepts)
