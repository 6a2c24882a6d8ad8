"""Level fast of what goes over tensors value by value, one pass each, compiled by numba.

The formulas are those of :mod:`refsim.numerics.formats` and :mod:`refsim.numerics.eltwise` in torch, bit for bit but
for results below 1e-30.
"""

from __future__ import annotations

import numba
import numpy as np

from refsim.numerics.lanes import add, bits_of_float, both, either, exclusive, float_of_bits, left, mul, right, sub

_I32 = np.int32
_SIGN = np.int32(-0x80000000)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
_TINY = np.int32(0x00800000)
_LEAST = np.int32(20 << 23)
"""Power of two that stands for smaller ones, so that a unit 2^-10 below it is a number, too."""
_TEN = np.int32(10 << 23)
_CHUNK = 1 << 14
"""Values that one thread takes at a time."""


@numba.njit(inline="always")
def _flushed(bits):
    return bits if both(bits, _MAGNITUDE) >= _TINY else _I32(0)


@numba.njit(inline="always")
def _rounded(bits, half, mask):
    magnitude = min(both(bits, _MAGNITUDE), _INFINITE)
    magnitude = both(add(magnitude, half), mask)
    return either(magnitude, both(bits, _SIGN)) if magnitude >= _TINY else _I32(0)


@numba.njit(inline="always")
def _bf16(x):
    return float_of_bits(_rounded(bits_of_float(x), _I32(0x8000), _I32(-0x10000)))


@numba.njit(inline="always")
def _cut(x, mask):
    return float_of_bits(_flushed(both(bits_of_float(x), mask)))


@numba.njit(inline="always")
def _unit(first, second):
    """Return 2^-10 of the larger power of two of two values, and its inverse."""
    power = max(both(bits_of_float(first), _INFINITE), both(bits_of_float(second), _INFINITE))
    unit = sub(max(power, _LEAST), _TEN)
    return float_of_bits(unit), float_of_bits(sub(_I32(0x7F000000), unit))


@numba.njit(inline="always")
def _to_units(x, unit, inverse):
    """Round to units, half away from zero."""
    steps = np.float32(np.floor(abs(x) * inverse + np.float32(0.5))) * unit
    return -steps if x < 0 else steps


@numba.njit(parallel=True, cache=True)
def rounded(x, dropped, out):
    """Round to the nearest without the last ``dropped`` bits, ties away from zero; NaN is infinity."""
    half = _I32(1 << (dropped - 1))
    mask = _I32(-(1 << dropped))
    for job in numba.prange((x.size + _CHUNK - 1) // _CHUNK):
        for i in range(job * _CHUNK, min((job + 1) * _CHUNK, x.size)):
            out[i] = float_of_bits(_rounded(bits_of_float(x[i]), half, mask))


@numba.njit(parallel=True, cache=True)
def cut(x, dropped, out):
    """Drop the last ``dropped`` bits; denormals and -0 are +0."""
    mask = _I32(-(1 << dropped))
    for job in numba.prange((x.size + _CHUNK - 1) // _CHUNK):
        for i in range(job * _CHUNK, min((job + 1) * _CHUNK, x.size)):
            out[i] = _cut(x[i], mask)


@numba.njit(parallel=True, cache=True)
def sums(a, b, sign, wide, out):
    """Add 11-bit mantissas of ``a`` and ``sign`` times ``b``, the smaller rounded to the larger's last place."""
    mask = _I32(-(1 << 13))
    for job in numba.prange((a.size + _CHUNK - 1) // _CHUNK):
        for i in range(job * _CHUNK, min((job + 1) * _CHUNK, a.size)):
            x = _cut(a[i], mask)
            y = _cut(b[i], mask) * sign
            unit, inverse = _unit(x, y)
            total = _to_units(x, unit, inverse) + _to_units(y, unit, inverse)
            out[i] = total if wide else _bf16(total)


@numba.njit(inline="always")
def _hashed(bits):
    """Return a number between -1 and 1 that looks random."""
    bits = mul(bits, _I32(-0x61C88647))
    bits = mul(exclusive(bits, right(bits, _I32(15))), _I32(-0x7A143595))
    return np.float32(bits) * np.float32(2.0**-31)


@numba.njit(parallel=True, cache=True)
def noisy(x, gain, border, small, large, out, largest):
    """Round ``x (1 + gain)`` and noise to 8 bits; noise is as large as ``large`` past ``border``, else as ``small``.

    Args:
        x, out: (M, N), may be one array.
        largest: what each row's results are compared with, (M,), and the largest of both afterwards.
    """
    rows, columns = x.shape
    for row in numba.prange(rows):
        for i in range(columns):
            spread = large if abs(x[row, i]) > border else small
            out[row, i] = _bf16(x[row, i] + gain * x[row, i] + spread * _hashed(bits_of_float(x[row, i])))
        top = largest[row]
        for i in range(columns):
            top = max(top, out[row, i])
        largest[row] = top


@numba.njit(inline="always")
def _to_even(x):
    """Round a finite number to bf16, ties to even."""
    bits = bits_of_float(x)
    odd = both(right(bits, _I32(16)), _I32(1))
    return float_of_bits(_flushed(both(add(add(bits, _I32(0x7FFF)), odd), _I32(-0x10000))))


@numba.njit(parallel=True, cache=True)
def powers(scores, largest, factor, limit, mask, out, sums):
    """Fill in what streaming attention makes of scores: e^(scale (x - largest)), and sums of 32 columns apart.

    Args:
        scores, largest: bf16 values (M, N), the largest of each row (M,).
        factor, limit: of Schraudolph's exponential: what a difference is multiplied by, and where it is cut.
        mask: bits of a power that go into ``out``, the others into the sums alone.
        out: (M, N), may be ``scores``.
        sums: (M, 32), added in bf16, ties to even.
    """
    rows, columns = scores.shape
    for row in numba.prange(rows):
        top = largest[row]
        for i in range(columns):
            x = scores[row, i]
            unit, inverse = _unit(x, top)
            difference = _bf16(_to_units(x, unit, inverse) - _to_units(top, unit, inverse))
            fixed = max(difference, limit) * factor + np.float32(32500.818359375)
            whole = min(max(np.float32(np.floor(fixed + np.float32(0.5))), np.float32(0)), np.float32(65280))
            out[row, i] = float_of_bits(both(left(_I32(whole), _I32(15)), _I32(-0x10000)))
        for i in range(32):
            sums[row, i] = out[row, i] if i < columns else np.float32(0)
        for tile in range(32, columns, 32):
            for i in range(min(32, columns - tile)):
                sums[row, i] = _to_even(sums[row, i] + out[row, tile + i])
        for i in range(columns):
            out[row, i] = float_of_bits(both(bits_of_float(out[row, i]), mask))


@numba.njit(inline="always")
def _added(before, x, wide):
    if wide:
        return before + x
    unit, inverse = _unit(before, x)
    return _bf16(before + unit * np.float32(np.floor(x * inverse + np.float32(0.5))))


@numba.njit(parallel=True, cache=True)
def products(a, b, phases, wide, out):
    """Multiply by phases; ``a`` goes to the 5-bit port, ``b`` to the 7-bit one."""
    for job in numba.prange((a.size + _CHUNK - 1) // _CHUNK):
        for i in range(job * _CHUNK, min((job + 1) * _CHUNK, a.size)):
            y = _cut(b[i], _I32(-(1 << 13)))
            b_high = _cut(y, _I32(-(1 << 17)))
            b_low = y - b_high
            a_high = _cut(a[i], _I32(-(1 << 19)))
            a_low = _cut(a[i], _I32(-(1 << 14))) - a_high
            dest = _added(np.float32(0), b_high * a_high, wide)
            if phases > 1:
                dest = _added(dest, b_high * a_low, wide)
            if phases > 2:
                dest = _added(dest, b_low * a_high, wide)
            if phases > 3:
                dest = _added(dest, b_low * a_low, wide)
            out[i] = dest
