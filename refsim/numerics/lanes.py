"""Operations on integers of one width for compiled loops: numba itself widens int16 and int32 to 64 bits.

Loops over arrays that use them become vector instructions of 16 or 32 bits a lane.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _operation(name: str) -> Callable:
    """Return the instruction ``name`` of two integers of one width, which wraps around."""

    @intrinsic
    def operation(typing_context, a, b):
        def generate(context, builder, signature, values):
            return getattr(builder, name)(*values)

        return a(a, a), generate

    return operation


add = _operation("add")
sub = _operation("sub")
mul = _operation("mul")
both = _operation("and_")
either = _operation("or_")
exclusive = _operation("xor")
left = _operation("shl")
right = _operation("ashr")
"""Keeps the sign, so that x / 2^n is rounded down."""


def _conversion(source: types.Type, target: types.Type, generated: Callable) -> Callable:
    @intrinsic
    def conversion(typing_context, x):
        def generate(context, builder, signature, values):
            return generated(builder, values[0])

        return target(source), generate

    return conversion


bits_of_float = _conversion(types.float32, types.int32, lambda builder, x: builder.bitcast(x, ir.IntType(32)))
float_of_bits = _conversion(types.int32, types.float32, lambda builder, x: builder.bitcast(x, ir.FloatType()))
