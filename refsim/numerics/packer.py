"""The packer: what it writes from the destination registers into L1, and what it adds to what L1 holds.

    destination --> nearest, ties away --> bf16
                --> 7 significant bits, ties away --> shared exponent, ties away --> bfp8_b --> cut --> bfp4_b

A value for a block format is rounded twice unless ``precise``: ``typecast`` to bfp8_b packs so.

Source: ttsim 1.10; tests hold the golden values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refsim.base.errors import UserError
from refsim.numerics.formats import (
    BLOCK,
    MANTISSA_BITS,
    bits_of,
    block_values,
    check_broadcast,
    check_float32,
    check_format,
    flush,
    round_ties_away,
    truncate,
)


def pack(x: Tensor, dtype: str, *, precise: bool = False) -> Tensor:
    """Return what the packer writes of the values of a destination.

    Args:
        x: float32, the values that the destination holds; the last dim of a block format is a multiple of 16.
        dtype: ``bfloat16``, ``bfloat8_b`` or ``bfloat4_b``.
        precise: cut fp32 values to bf16 in place of rounding them to 7 significant bits before the exponent is shared.

    Returns:
        float32 of the same shape, the values that L1 holds.

    Raises:
        UserError: an unknown dtype, or a last dim that is no multiple of 16.
    """
    check_format(x, dtype)
    if dtype == "bfloat16":
        return round_ties_away(x, 7)
    first = truncate(x, 7) if precise else round_ties_away(x, 6)
    return _share_exponents(first, MANTISSA_BITS[dtype])


def _share_exponents(x: Tensor, mantissa_bits: int) -> Tensor:
    """Round bf16 values to blocks of 16 with one exponent: 7 bits, ties away, saturating; then cut to fewer."""
    bits = bits_of(x).reshape(-1, BLOCK)
    exponent = bits >> 23 & 0xFF
    mantissa = torch.where(exponent > 0, bits >> 16 & 0x7F | 0x80, 0)
    shared = exponent.amax(dim=-1, keepdim=True)
    shift = (shared - exponent).clamp(max=9)
    magnitude = ((mantissa + (1 << shift)) >> (shift + 1)).clamp(max=0x7F)
    magnitude = magnitude >> (7 - mantissa_bits)
    return block_values(magnitude, shared, bits < 0, mantissa_bits).reshape(x.shape)


def accumulate(stored: Tensor, x: Tensor, *, dtype: str, fp32_dest_acc_en: bool) -> Tensor:
    """Return what L1 holds after the packer has added a destination to it.

    Args:
        stored: float32, the values in L1.
        x: float32 of the same shape, the values of the destination.
        dtype: of L1, ``float32`` (IEEE addition) or ``bfloat16`` (the exact sum, rounded to nearest, ties to even).
        fp32_dest_acc_en: the destination has 32 bits: on the way to bfloat16 its values are rounded, ties away, first.

    Raises:
        UserError: another dtype.
    """
    check_float32("accumulate", stored, x)
    check_broadcast("accumulate", stored, x)
    if dtype == "float32":
        return flush(stored + x)
    if dtype != "bfloat16":
        raise UserError(f"the packer accumulates in float32 or bfloat16, not in '{dtype}'.")
    added = round_ties_away(x, 7) if fp32_dest_acc_en else x
    # of two bf16 values float32 holds the sum, or rounds off what is far below half a last place of bf16
    return flush((stored + added).to(torch.bfloat16).to(torch.float32))
