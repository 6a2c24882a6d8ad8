"""The loops of the exact matrix unit, compiled by numba, on integers of 16 and 32 bits.

    tile of 32 of K, row of in0, 64 columns of in1:
      aligned   4 groups of 8    largest exponent of a group's products, and how far each lies below it
      summed    phase, group     products of 5 x 7 bits, shifted to the largest exponent and rounded, added: 16 bits
      narrow    phase, 2 groups  both sums and a destination of 16 bits, added and rounded: 32 bits
      wide      likewise         a destination of 32 bits

Inner loops run over a constant number of columns and have no branches, so that they become vector instructions. Only
the order of K, phases and halves is the device's; rows and columns are worked on in any order.
"""

from __future__ import annotations

import numba
import numpy as np

from refsim.numerics.lanes import add, bits_of_float, both, either, left, mul, right, sub

COLUMNS = 64
"""Columns of in1 that lie side by side in memory, a panel."""
NOTHING = -4096
"""Exponent of a zero: below every other one; the sum and the difference of two are within 16 bits."""
ROWS = 16
"""Rows that use 32 x 64 values of in1 while they are in the first cache."""
_I16 = np.int16
_I32 = np.int32
_U64 = np.uint64
_ZERO = np.int32(0)
_ONE = np.int32(1)
_SIGN = np.int32(-0x80000000)
_INFINITE = np.int32(0x7F800000)
_EXPONENT = np.int32(23)


@numba.njit(inline="always")
def _rounded(doubled: int, by: int) -> int:
    """x / 2^by of 2x, rounded half away from zero, in 16 bits; ``by`` is at most 14 and |x| below 2^12."""
    cut = right(add(doubled, right(doubled, _I16(15))), both(by, _I16(15)))
    return right(add(cut, _I16(1)), _I16(1))


@numba.njit
def _aligned(b_exp, row, a_exp, panel, k, group, top, by):
    """Fill ``top`` with the largest exponent of eight products from ``k``, ``by`` with the distances from it."""
    for n in range(COLUMNS):
        largest = _I16(2 * NOTHING)
        for j in range(8):
            largest = max(largest, add(b_exp[row, k + j], a_exp[panel, k + j, n]))
        top[group, n] = largest
    for j in range(8):
        exponent = b_exp[row, k + j]
        for n in range(COLUMNS):
            by[group, j, n] = min(sub(top[group, n], add(exponent, a_exp[panel, k + j, n])), _I16(14))


@numba.njit
def _summed(b, row, a, panel, k, group, by, sums):
    """Fill a row of ``sums`` with the sum of eight products from ``k``, in units of the tenth bit below the largest."""
    for n in range(COLUMNS):
        total = _I16(0)
        for j in range(8):
            total = add(total, _rounded(mul(b[row, k + j], a[panel, k + j, n]), by[group, j, n]))
        sums[group & _U64(1), n] = total


@numba.njit(inline="always")
def _to_guards(x: int, by: int) -> int:
    """x / 2^by, rounded half up to 1/2^13 and then to 1; ``by`` is at most 20."""
    half = left(_ONE, by)
    return right(add(add(left(x, _ONE), half), right(half, _I32(13))), add(by, _ONE))


@numba.njit(inline="always")
def _to_last(x: int, by: int) -> int:
    """x / 2^by, rounded half up; ``by`` is at most 29 and |x| below 2^28, so that nothing overflows."""
    return right(add(left(x, _ONE), left(_ONE, by)), add(by, _ONE))


@numba.njit
def _narrow(below, top, group, sums, dest, row):
    """Add two sums to a destination that holds bf16: eight bits and three guard bits, see :func:`_wide`."""
    for n in range(COLUMNS):
        e0 = max(sub(_I32(top[group, n]), below), _ZERO)
        e1 = max(sub(_I32(top[group + _U64(1), n]), below), _ZERO)
        bits = dest[row, n]
        e2 = both(right(bits, _EXPONENT), _I32(255))
        x0 = _I32(sums[0, n]) if e0 > 0 else _ZERO
        x1 = _I32(sums[1, n]) if e1 > 0 else _ZERO
        x2 = either(both(right(bits, _I32(13)), _I32(0x3F8)), _I32(0x400)) if e2 > 0 else _ZERO
        e = max(max(e0, e1), e2)
        x0 = _to_guards(x0, min(sub(e, e0), _I32(20)))
        x1 = _to_guards(x1, min(sub(e, e1), _I32(20)))
        x2 = _to_guards(x2, min(sub(e, e2), _I32(20)))
        total = add(add(x0, x1), sub(_ZERO, x2) if bits < 0 else x2)
        # a float32 holds the sum exactly, so rounding its bits rounds it to eight, half away from zero
        magnitude = add(bits_of_float(np.float32(max(total, sub(_ZERO, total)))), _I32(0x8000))
        e = add(right(magnitude, _EXPONENT), sub(e, _I32(137)))
        rounded = either(both(magnitude, _I32(0x7F0000)), left(e, _EXPONENT))
        rounded = either(_INFINITE if e >= 255 else rounded, both(total, _SIGN))
        dest[row, n] = _ZERO if e <= 0 or total == 0 else rounded


@numba.njit
def _wide(below, top, group, sums, dest, row, wormhole):
    """Add two sums to a destination that holds float32.

    Args:
        below: what a product's exponent is too large by, as parts of mantissas are multiplied.
        top: biased exponents int16 (groups, 64).
        group: of the first sum; the second one's is the next.
        sums: int16 (2, 64), in units of 2^(top - below - 137).
        dest: the destination's bits, int32 (rows, 64).
        row: of the destination.
        wormhole: a negative result of one unit in the last place is scaled as Wormhole does.
    """
    for n in range(COLUMNS):
        e0 = max(sub(_I32(top[group, n]), below), _ZERO)
        e1 = max(sub(_I32(top[group + _U64(1), n]), below), _ZERO)
        bits = dest[row, n]
        e2 = both(right(bits, _EXPONENT), _I32(255))
        x0 = left(_I32(sums[0, n]), _I32(13)) if e0 > 0 else _ZERO
        x1 = left(_I32(sums[1, n]), _I32(13)) if e1 > 0 else _ZERO
        x2 = either(both(bits, _I32(0x7FFFFF)), _I32(0x800000)) if e2 > 0 else _ZERO
        e = max(max(e0, e1), e2)
        x0 = _to_last(x0, min(sub(e, e0), _I32(29)))
        x1 = _to_last(x1, min(sub(e, e1), _I32(29)))
        x2 = _to_last(x2, min(sub(e, e2), _I32(29)))
        total = add(add(x0, x1), sub(_ZERO, x2) if bits < 0 else x2)
        magnitude = max(total, sub(_ZERO, total))
        # without the bit behind the leading one, conversion to float32 can't round up to the next power of two
        power = bits_of_float(np.float32(both(magnitude, ~right(magnitude, _ONE))))
        length = max(sub(right(power, _EXPONENT), _I32(127)), _ZERO)
        mantissa = right(add(left(magnitude, sub(_I32(30), length)), _I32(64)), _I32(7))
        e = add(e, sub(length, _EXPONENT))
        if wormhole:
            e = add(e, _I32(27)) if total == -1 else e
        # the mantissa has its leading bit: it adds one to the exponent before it, two after a carry
        rounded = add(left(sub(e, _ONE), _EXPONENT), mantissa)
        e = add(e, right(mantissa, _I32(24)))
        rounded = either(_INFINITE if e >= 255 else rounded, both(total, _SIGN))
        dest[row, n] = _ZERO if e <= 0 or total == 0 else rounded


@numba.njit(inline="always")
def _update(below, top, group, sums, dest, row, wide, wormhole):
    if wide:
        _wide(_I32(below), top, group, sums, dest, row, wormhole)
    else:
        _narrow(_I32(below), top, group, sums, dest, row)


@numba.njit(parallel=True, cache=True)
def dots(b_exp, b, a_exp, a, start, phases, wide, wormhole):
    """Return bits int32 (M, panels x 64) of the destination after all of K.

    Args:
        b_exp: biased exponents of in0, int16 (M, K); K is a multiple of 32.
        b: twice its signed high and low parts, int16 (2, M, K).
        a_exp: biased exponents of in1, int16 (panels, K, 64).
        a: its signed high and low parts, int16 (2, panels, K, 64).
        start: bits that the destination holds before, int32 (M, panels x 64).
        phases: how many run.
        wide: the destination has 32 bits.
        wormhole: see :func:`_wide`.
    """
    rows, depth = b_exp.shape
    panels = a_exp.shape[0]
    chunks = (rows + ROWS - 1) // ROWS
    out = np.zeros((rows, panels * COLUMNS), np.int32)
    for job in numba.prange(panels * chunks):
        panel = _U64(job // chunks)
        first = (job % chunks) * ROWS
        last = min(first + ROWS, rows)
        columns = slice(np.int64(panel) * COLUMNS, (np.int64(panel) + 1) * COLUMNS)
        dest = start[first:last, columns].copy()
        top = np.empty((4, COLUMNS), np.int16)
        by = np.empty((4, 8, COLUMNS), np.int16)
        sums = np.empty((2, COLUMNS), np.int16)
        for tile in range(0, depth, 32):
            for index in range(first, last):
                row = _U64(index)
                for group in range(4):
                    _aligned(b_exp, row, a_exp, panel, _U64(tile + 8 * group), _U64(group), top, by)
                for phase in range(phases):
                    below = 127 + 5 * (phase & 1) + 7 * (phase >> 1)
                    b_part = b[phase >> 1]
                    a_part = a[phase & 1]
                    for group in range(0, 4, 2):
                        for side in range(group, group + 2):
                            _summed(b_part, row, a_part, panel, _U64(tile + 8 * side), _U64(side), by, sums)
                        _update(below, top, _U64(group), sums, dest, _U64(index - first), wide, wormhole)
        out[first:last, columns] = dest
    return out


@numba.njit(parallel=True, cache=True)
def products(b_exp, b, a_exp, a, phases, wide, wormhole):
    """Return bits int32 (rows, 64) of element-wise products; all of :func:`dots`' operands are int16 (rows, 64)."""
    out = np.zeros(b_exp.shape, np.int32)
    for index in numba.prange(out.shape[0]):
        row = _U64(index)
        top = np.full((2, COLUMNS), 2 * NOTHING, np.int16)
        sums = np.zeros((2, COLUMNS), np.int16)
        for n in range(COLUMNS):
            top[0, n] = add(b_exp[row, n], a_exp[row, n])
        for phase in range(phases):
            for n in range(COLUMNS):
                sums[0, n] = right(mul(b[phase >> 1, row, n], a[phase & 1, row, n]), _I16(1))
            below = 127 + 5 * (phase & 1) + 7 * (phase >> 1)
            _update(below, top, _U64(0), sums, out, row, wide, wormhole)
    return out


@numba.njit(parallel=True, cache=True)
def sums(a, a_exp, b, b_exp, wide, wormhole):
    """Return bits int32 (rows, 64) of element-wise sums of twice the signed 11-bit mantissas, int16 (rows, 64)."""
    out = np.zeros(a.shape, np.int32)
    for index in numba.prange(out.shape[0]):
        row = _U64(index)
        top = np.full((2, COLUMNS), 2 * NOTHING, np.int16)
        total = np.zeros((2, COLUMNS), np.int16)
        for n in range(COLUMNS):
            largest = max(a_exp[row, n], b_exp[row, n])
            top[0, n] = largest
            x = _rounded(a[row, n], min(sub(largest, a_exp[row, n]), _I16(14)))
            y = _rounded(b[row, n], min(sub(largest, b_exp[row, n]), _I16(14)))
            total[0, n] = add(x, y)
        _update(0, top, _U64(0), total, out, row, wide, wormhole)
    return out
