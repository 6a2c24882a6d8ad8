"""Storage formats: what bfloat16, TF32, bfp8_b and bfp4_b hold of a float32 value, by the rule of who writes it.

bfp8_b and bfp4_b share one exponent among 16 values of a row of a face; ttnn's host and the packer round to them
differently. Here a block is 16 consecutive values of the last dim, which is what a row of a 16 x 16 face is.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from refsim.base.errors import UserError

FORMATS = ("bfloat16", "bfloat8_b", "bfloat4_b")
MANTISSA_BITS = {"bfloat8_b": 7, "bfloat4_b": 3}
"""Bits of magnitude that a block format holds of each value."""
LARGE = 1 << 14
"""Values from which on a compiled loop goes over a tensor."""
BLOCK = 16
"""Values that share an exponent."""


def check_float32(what: str, *values: Tensor) -> None:
    """Raise ``UserError`` unless all values are float32 tensors: bits of others would be read as float32's."""
    for x in values:
        if not isinstance(x, Tensor) or x.dtype != torch.float32:
            kind = str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else type(x).__name__
            raise UserError(f"{what} takes float32 tensors, not {kind}; x.float() has the values of any shorter dtype.")


def check_broadcast(what: str, a: Tensor, b: Tensor) -> None:
    """Raise ``UserError`` unless two tensors broadcast."""
    for one, other in zip(reversed(a.shape), reversed(b.shape), strict=False):
        if one != other and 1 not in (one, other):
            raise UserError(f"{what} takes tensors that broadcast, not {tuple(a.shape)} and {tuple(b.shape)}.")


def bits_of(x: Tensor) -> Tensor:
    """Return the bits of float32 values as int32."""
    return x.contiguous().view(torch.int32)


def from_bits(bits: Tensor) -> Tensor:
    """Return the float32 values of int32 bits."""
    return bits.to(torch.int32).contiguous().view(torch.float32)


def flush(x: Tensor) -> Tensor:
    """Return float32 values with denormals and -0 as +0: no unit of the device holds a denormal."""
    if _is_large(x):
        return in_one_pass("cut", x, 0)
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, torch.zeros_like(x), x)


@cache
def passes() -> ModuleType | None:
    """Return the loops of :mod:`refsim.numerics.compiled_passes`, None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("refsim.numerics.compiled_passes")


def in_one_pass(name: str, *arguments: Tensor | float | bool) -> Tensor:
    """Return what a loop of :func:`passes` makes of tensors of one shape, float32."""
    flat = [each.contiguous().view(-1).numpy() if isinstance(each, Tensor) else each for each in arguments]
    shape = next(each.shape for each in arguments if isinstance(each, Tensor))
    out = torch.empty(shape, dtype=torch.float32)
    getattr(passes(), name)(*flat, out.view(-1).numpy())
    return out


def _is_large(x: Tensor) -> bool:
    """Tell whether a compiled pass is worth its call, and there is one."""
    return x.numel() >= LARGE and passes() is not None


def truncate(x: Tensor, mantissa_bits: int) -> Tensor:
    """Return float32 values with all but the first ``mantissa_bits`` bits behind the leading one dropped.

    TF32 has 10 of them, bfloat16 has 7: unpacking float32 to either truncates.
    """
    dropped = 23 - mantissa_bits
    if _is_large(x):
        return in_one_pass("cut", x, dropped)
    return flush(from_bits(bits_of(x) >> dropped << dropped))


def round_ties_away(x: Tensor, mantissa_bits: int) -> Tensor:
    """Return float32 values rounded to ``mantissa_bits`` bits behind the leading one, ties away from zero.

    NaN becomes infinity with its sign, denormals +0.
    """
    dropped = 23 - mantissa_bits
    if _is_large(x):
        return in_one_pass("rounded", x, dropped)
    bits = bits_of(x)
    magnitude = (bits & 0x7FFFFFFF).clamp_(max=0x7F800000)
    magnitude = magnitude.add_(1 << (dropped - 1)) >> dropped << dropped
    return flush(from_bits(magnitude | bits & -0x80000000))


def from_host(x: Tensor, dtype: str) -> Tensor:
    """Return what ttnn's host conversion (``from_torch``) makes of float32 values.

    bfloat16 is rounded to nearest, ties to even. In a block format the exponent is the largest of 16 values, each
    mantissa is shifted down to it with the lost bits dropped, then rounded to 7 or 3 bits, ties to even, saturating.

    Args:
        x: float32, any shape; the last dim of a block format is a multiple of 16.
        dtype: one of ``FORMATS``.

    Raises:
        UserError: an unknown dtype, or a last dim that is no multiple of 16.

    Source: equal to ttnn 0.81.1 bit for bit (tests/tt_impl).
    """
    check_format(x, dtype)
    if dtype == "bfloat16":
        return x.to(torch.bfloat16).to(torch.float32)
    return _host_blocks(x, MANTISSA_BITS[dtype])


def check_format(x: Tensor, dtype: str) -> None:
    """Raise ``UserError`` unless ``dtype`` is a format that a float32 tensor of this shape can have."""
    check_float32(dtype, x)
    if dtype not in FORMATS:
        raise UserError(f"dtype '{dtype}' has no storage rule; choose one of {', '.join(FORMATS)}.")
    if dtype in MANTISSA_BITS and x.shape[-1] % BLOCK:
        raise UserError(
            f"{dtype} shares exponents among 16 values of the last dim, which is {x.shape[-1]}; "
            "pad it to a multiple of 16."
        )


def _host_blocks(x: Tensor, mantissa_bits: int) -> Tensor:
    """Round blocks of 16 as ttnn's host does."""
    bits = bits_of(x).reshape(-1, BLOCK)
    exponent = bits >> 23 & 0xFF
    mantissa = torch.where(exponent > 0, bits & 0x7FFFFF | 0x800000, 0)
    shared = exponent.amax(dim=-1, keepdim=True)
    mantissa = mantissa >> (shared - exponent).clamp(max=31)
    dropped = 24 - mantissa_bits
    high = mantissa >> dropped
    rest = mantissa & ((1 << dropped) - 1)
    half = 1 << (dropped - 1)
    up = (rest > half) | ((rest == half) & (high & 1 == 1))
    high = (high + up).clamp(max=(1 << mantissa_bits) - 1)
    return block_values(high, shared, bits < 0, mantissa_bits).reshape(x.shape)


def block_values(magnitude: Tensor, exponent: Tensor, negative: Tensor, mantissa_bits: int) -> Tensor:
    """Return magnitude / 2^(mantissa_bits - 1) x 2^(exponent - 127) with its sign; a magnitude of 0 is +0.

    Exponent 255 makes infinity or NaN, as float32 has it, of a magnitude with its first bit set.
    """
    length = torch.frexp(magnitude.to(torch.float32)).exponent.to(torch.int32)
    missing = mantissa_bits - length
    fraction = (magnitude << missing) - (1 << (mantissa_bits - 1))
    bits = (exponent - missing).clamp(min=0) << 23 | fraction << (24 - mantissa_bits)
    bits = torch.where(negative, bits | -0x80000000, bits)
    return flush(from_bits(torch.where((magnitude > 0) & (exponent > missing), bits, 0)))
