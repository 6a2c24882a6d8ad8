"""The vector unit's multiply-add on integers, compiled by numba, see :mod:`refsim.numerics.vector_unit`."""

from __future__ import annotations

import numba
import numpy as np

from refsim.numerics.lanes import bits_of_float, float_of_bits


@numba.njit
def _multiply_add(x: int, y: int, z: int, wormhole: bool) -> int:
    """Bits of x y + z of finite float32 bits, as int64 each."""
    x_exp = x >> 23 & 255
    y_exp = y >> 23 & 255
    z_exp = z >> 23 & 255
    x_man = (x & 0x7FFFFF | 0x800000) if x_exp else 0
    y_man = (y & 0x7FFFFF | 0x800000) if y_exp else 0
    z_man = (z & 0x7FFFFF | 0x800000) << 3 if z_exp else 0
    product = x_man * y_man
    rest = product & 0xFFFFF
    product = product >> 20 | (rest != 0)
    p_exp = x_exp + y_exp - 127
    negative = (x ^ y) < 0
    if product == 0 or p_exp < 0:
        return z if z_man else 0
    e = max(p_exp, z_exp)
    product = _sticky(product, e - p_exp)
    z_man = _sticky(z_man, e - z_exp)
    total = (-product if negative else product) + (-z_man if z < 0 else z_man)
    if total == 0:
        return 0
    sign = -0x80000000 if total < 0 else 0
    magnitude = abs(total)
    length = 0
    while magnitude >> (length + 1):
        length += 1
    over = length - 26
    e += over
    if e >= 255:
        return sign | 0x7F800000
    if e < 1:
        return 0
    if over > 0:
        lost = magnitude & (1 if wormhole else over | 1)
        magnitude = magnitude >> over | (lost != 0)
    else:
        magnitude <<= -over
    bits = (e << 23) + (magnitude >> 3 & 0x7FFFFF)
    bits += (magnitude & 7) + (bits & 1) > 4
    return sign | bits


@numba.njit(inline="always")
def _sticky(magnitude: int, by: int) -> int:
    """Shift right; bits that are lost set the last one unless nothing is left."""
    if by > 31:
        return 0
    shifted = magnitude >> by
    if shifted and shifted << by != magnitude:
        shifted |= 1
    return shifted


@numba.njit(parallel=True, cache=True)
def multiply_adds(x, y, z, wormhole):
    """Return bits int32 (n,) of x y + z of int32 (n,) bits of float32 values."""
    out = np.empty(x.shape[0], np.int32)
    for n in numba.prange(x.shape[0]):
        largest = max(x[n] & 0x7F800000, y[n] & 0x7F800000, z[n] & 0x7F800000)
        if largest == 0x7F800000:
            out[n] = bits_of_float(float_of_bits(x[n]) * float_of_bits(y[n]) + float_of_bits(z[n]))
        else:
            out[n] = _multiply_add(np.int64(x[n]), np.int64(y[n]), np.int64(z[n]), wormhole)
    return out
