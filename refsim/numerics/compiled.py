"""The loops of the matrix unit, compiled by numba, on integers of 16 and 32 bits.

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

from refsim.numerics.lanes import add, bits_of_float, both, either, float_of_bits, left, mul, right, sub

COLUMNS = 64
"""Columns of in1 that lie side by side in memory, a panel."""
NOTHING = -4096
"""Exponent of a zero: below every other one; the sum and the difference of two are within 16 bits."""
_ROWS = 16
"""Rows that use 32 x 64 values of in1 while they are in the first cache."""
_I16, _I32, _U64 = np.int16, np.int32, np.uint64
_ZERO, _ONE = np.int32(0), np.int32(1)
_SIGN, _INFINITE, _EXPONENT = np.int32(-0x80000000), np.int32(0x7F800000), np.int32(23)


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
def _narrow(below, top, group, sums, held, row):
    """Add two sums to a destination that holds bf16: eight bits and three guard bits, see :func:`_wide`."""
    for n in range(COLUMNS):
        e0 = max(sub(_I32(top[group, n]), below), _ZERO)
        e1 = max(sub(_I32(top[group + _U64(1), n]), below), _ZERO)
        bits = held[row, n]
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
        held[row, n] = _ZERO if e <= 0 or total == 0 else rounded


@numba.njit
def _wide(below, top, group, sums, held, row, wormhole):
    """Add two sums to a destination that holds float32.

    Args:
        below: what a product's exponent is too large by, as parts of mantissas are multiplied.
        top: biased exponents int16 (groups, 64).
        group: of the first sum; the second one's is the next.
        sums: int16 (2, 64), in units of 2^(top - below - 137).
        held: the destination's bits, int32 (rows, 64).
        row: of the destination.
        wormhole: a negative result of one unit in the last place is scaled as Wormhole does.
    """
    for n in range(COLUMNS):
        e0 = max(sub(_I32(top[group, n]), below), _ZERO)
        e1 = max(sub(_I32(top[group + _U64(1), n]), below), _ZERO)
        bits = held[row, n]
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
        held[row, n] = _ZERO if e <= 0 or total == 0 else rounded


@numba.njit(inline="always")
def _update(below, top, group, sums, held, row, wide, wormhole):
    if wide:
        _wide(_I32(below), top, group, sums, held, row, wormhole)
    else:
        _narrow(_I32(below), top, group, sums, held, row)


@numba.njit(parallel=True, cache=True)
def dots(b_exp, b, a_exp, a, phases, wide, wormhole):
    """Return bits int32 (M, panels x 64) of the destination after all of K.

    Args:
        b_exp: biased exponents of in0, int16 (M, K); K is a multiple of 32.
        b: twice its signed high and low parts, int16 (2, M, K).
        a_exp: biased exponents of in1, int16 (panels, K, 64).
        a: its signed high and low parts, int16 (2, panels, K, 64).
        phases: how many run.
        wide: the destination has 32 bits.
        wormhole: see :func:`_wide`.
    """
    rows, depth = b_exp.shape
    panels = a_exp.shape[0]
    chunks = (rows + _ROWS - 1) // _ROWS
    out = np.zeros((rows, panels * COLUMNS), np.int32)
    for job in numba.prange(panels * chunks):
        panel = _U64(job // chunks)
        first = (job % chunks) * _ROWS
        last = min(first + _ROWS, rows)
        held = np.zeros((_ROWS, COLUMNS), np.int32)
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
                    b_part, a_part = b[phase >> 1], a[phase & 1]
                    for group in range(0, 4, 2):
                        for side in range(group, group + 2):
                            _summed(b_part, row, a_part, panel, _U64(tile + 8 * side), _U64(side), by, sums)
                        _update(below, top, _U64(group), sums, held, _U64(index - first), wide, wormhole)
        out[first:last, np.int64(panel) * COLUMNS : (np.int64(panel) + 1) * COLUMNS] = held[: last - first]
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


@numba.njit
def _added(b, row, a, panel, k, held, index):
    """Add a dot of 16 from ``k`` to a destination of 16 bits by the cheap formula.

    Its halves are exact, rounded half up to three guard bits at the largest exponent, the sum to 8 bits, half away.
    """
    half = np.float32(0.5)
    for n in range(COLUMNS):
        x = np.float32(0)
        y = np.float32(0)
        for j in range(8):
            x += b[row, k + j] * a[panel, k + j, n]
        for j in range(8, 16):
            y += b[row, k + j] * a[panel, k + j, n]
        before = held[index, n]
        power = max(both(bits_of_float(x), _INFINITE), both(bits_of_float(y), _INFINITE))
        power = max(power, both(bits_of_float(before), _INFINITE))
        unit = sub(max(power, _I32(20 << 23)), _I32(10 << 23))
        inverse = float_of_bits(sub(_I32(0x7F000000), unit))
        units = np.float32(np.floor(x * inverse + half)) + np.float32(np.floor(y * inverse + half))
        after = before + float_of_bits(unit) * units
        held[index, n] = float_of_bits(both(add(bits_of_float(after), _I32(0x8000)), _I32(-0x10000)))


@numba.njit(parallel=True, cache=True)
def cheap_dots(b, a, phases):
    """Return float32 (M, panels x 64), a 16-bit destination after all of K by the cheap formula.

    Args:
        b: high and low parts of in0, float32 (2, M, K); K is a multiple of 32.
        a: high and low parts of in1, float32 (2, panels, K, 64).
        phases: how many run.
    """
    _, rows, depth = b.shape
    panels = a.shape[1]
    chunks = (rows + _ROWS - 1) // _ROWS
    out = np.zeros((rows, panels * COLUMNS), np.float32)
    for job in numba.prange(panels * chunks):
        panel = _U64(job // chunks)
        first = (job % chunks) * _ROWS
        last = min(first + _ROWS, rows)
        held = np.zeros((_ROWS, COLUMNS), np.float32)
        for tile in range(0, depth, 32):
            for index in range(first, last):
                for phase in range(phases):
                    for k in range(tile, tile + 32, 16):
                        b_part, a_part = b[phase >> 1], a[phase & 1]
                        _added(b_part, _U64(index), a_part, panel, _U64(k), held, _U64(index - first))
        out[first:last, np.int64(panel) * COLUMNS : (np.int64(panel) + 1) * COLUMNS] = held[: last - first]
    return out


@numba.njit
def _multiply_add(x: int, y: int, z: int, wormhole: bool) -> int:
    """Bits of x y + z of finite float32 bits, as int64 each; see :mod:`refsim.numerics.vector_unit`."""
    x_exp, y_exp, z_exp = x >> 23 & 255, y >> 23 & 255, z >> 23 & 255
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
