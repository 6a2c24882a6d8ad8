"""The loops of the exact level that torch cannot express, compiled by numba, on integers.

Inner loops run over columns and have no branches, so that they become vector instructions.
"""

from __future__ import annotations

import numba
import numpy as np

from refsim.numerics.formats import NOTHING

_COLUMNS = 128
"""Columns that are worked on at a time: their parts stay in the first cache."""


@numba.njit(inline="always")
def _shifted(x: int, by: int) -> int:
    """x / 2^by, rounded half away from zero; ``by`` is at most 14 and |x| below 2^15."""
    return ((x << 1) + (1 << by) - (x < 0)) >> (by + 1)


@numba.njit(inline="always")
def _updated(held: int, e0: int, s0: int, e1: int, s1: int, wide: bool, wormhole: bool) -> int:
    """Bits of a destination after two sums of products are added to it.

    Args:
        held: its bits as float32.
        e0, s0: biased exponent of the first group's largest product, and the sum in units of 2^(e0 - 137).
        wide: the destination has 32 bits.
        wormhole: a negative result of one unit is scaled as Wormhole does.
    """
    s0 = np.int32(0) if e0 <= 0 else np.int32(s0 << 13)
    s1 = np.int32(0) if e1 <= 0 else np.int32(s1 << 13)
    e2 = np.int32((held >> 23) & 255)
    m2 = np.int32(0) if e2 == 0 else np.int32((held & 0x7FFFFF) | 0x800000)
    e = max(max(e0, e1), e2)
    if e <= 0:
        return np.int32(0)
    d0 = min(e - max(e0, 0), 29)
    d1 = min(e - max(e1, 0), 29)
    d2 = min(e - e2, 29)
    # invariant: |s| < 2^28 and m2 < 2^24, so that a shift by 29 leaves nothing and no sum overflows 32 bits
    s0 = np.int32(((s0 << 1) + (1 << d0)) >> (d0 + 1))
    s1 = np.int32(((s1 << 1) + (1 << d1)) >> (d1 + 1))
    m2 = np.int32(((m2 << 1) + (1 << d2)) >> (d2 + 1))
    if not wide:
        s0 = np.int32((s0 + 0x1000) & ~0x1FFF)
        s1 = np.int32((s1 + 0x1000) & ~0x1FFF)
        m2 = np.int32((m2 + 0x1000) & ~0x1FFF)
    total = np.int32((-m2 if held < 0 else m2) + s0 + s1)
    if total == 0:
        return np.int32(0)
    magnitude = abs(total)
    length = np.int32(0)
    rest = magnitude
    for step in (16, 8, 4, 2, 1):
        if rest >> step:
            length += np.int32(step)
            rest >>= step
    over = length - 23
    if wormhole and total == -1:
        over += 27
    e += over
    if not wide:
        over += 16
    if over > 0:
        magnitude = (magnitude + (1 << (over - 1))) >> over
    else:
        magnitude <<= -over
    if not wide:
        magnitude <<= 16
    if magnitude & 0x1000000:
        e += 1
    if e <= 0:
        return np.int32(0)
    sign = np.int32(-0x80000000) if total < 0 else np.int32(0)
    if e >= 255:
        return np.int32(sign | 0x7F800000)
    return np.int32(sign | (e << 23) | (magnitude & 0x7FFFFF))


@numba.njit(parallel=True, cache=True)
def dots(b, a, phases, wide, wormhole):
    """Bits (M, N) of the destination after all of K.

    Args:
        b: signed high and low parts and biased exponents of in0, int32 (M, K) each; K is a multiple of 32.
        a: the same of in1, int32 (K, N) each.
        phases: how many run.
        wide, wormhole: see :func:`_updated`.
    """
    b_high, b_low, b_exp = b
    a_high, a_low, a_exp = a
    rows, depth = b_high.shape
    columns = a_high.shape[1]
    blocks = (columns + _COLUMNS - 1) // _COLUMNS
    out = np.zeros((rows, columns), np.int32)
    for job in numba.prange(rows * blocks):
        row = job // blocks
        first = (job % blocks) * _COLUMNS
        last = min(first + _COLUMNS, columns)
        width = last - first
        held = np.zeros(width, np.int32)
        largest = np.empty((4, width), np.int32)
        sums = np.empty((2, width), np.int32)
        for tile in range(0, depth, 32):
            for group in range(4):
                largest[group, :] = NOTHING
                for k in range(tile + 8 * group, tile + 8 * group + 8):
                    exponent = b_exp[row, k]
                    for n in range(width):
                        largest[group, n] = max(largest[group, n], exponent + a_exp[k, first + n])
            for phase in range(phases):
                below = 127 + 5 * (phase & 1) + 7 * (phase >> 1)
                for half in range(2):
                    for side in range(2):
                        group = 2 * half + side
                        sums[side, :] = 0
                        for k in range(tile + 8 * group, tile + 8 * group + 8):
                            exponent = b_exp[row, k]
                            part = b_low[row, k] if phase & 2 else b_high[row, k]
                            if part == 0:
                                continue
                            if phase & 1:
                                for n in range(width):
                                    by = min(largest[group, n] - exponent - a_exp[k, first + n], 14)
                                    sums[side, n] += _shifted(part * a_low[k, first + n], by)
                            else:
                                for n in range(width):
                                    by = min(largest[group, n] - exponent - a_exp[k, first + n], 14)
                                    sums[side, n] += _shifted(part * a_high[k, first + n], by)
                    for n in range(width):
                        e0 = largest[2 * half, n] - below
                        e1 = largest[2 * half + 1, n] - below
                        held[n] = _updated(held[n], e0, sums[0, n], e1, sums[1, n], wide, wormhole)
        out[row, first:last] = held
    return out


@numba.njit(parallel=True, cache=True)
def products(b, a, phases, wide, wormhole):
    """Bits (n,) of the destination after element-wise products, int32 (n,) all of them, as in :func:`dots`."""
    b_high, b_low, b_exp = b
    a_high, a_low, a_exp = a
    out = np.zeros(b_high.shape[0], np.int32)
    for n in numba.prange(out.shape[0]):
        held = np.int32(0)
        exponent = b_exp[n] + a_exp[n]
        for phase in range(phases):
            below = 127 + 5 * (phase & 1) + 7 * (phase >> 1)
            b_part = b_low[n] if phase & 2 else b_high[n]
            a_part = a_low[n] if phase & 1 else a_high[n]
            held = _updated(held, exponent - below, a_part * b_part, np.int32(NOTHING), np.int32(0), wide, wormhole)
        out[n] = held
    return out


@numba.njit(parallel=True, cache=True)
def sums(a_man, a_exp, b_man, b_exp, wide, wormhole):
    """Bits (n,) of the destination after element-wise sums of signed 11-bit mantissas, int32 (n,) all of them."""
    out = np.zeros(a_man.shape[0], np.int32)
    for n in numba.prange(out.shape[0]):
        exponent = max(a_exp[n], b_exp[n])
        total = _shifted(a_man[n], min(exponent - a_exp[n], 14)) + _shifted(b_man[n], min(exponent - b_exp[n], 14))
        out[n] = _updated(np.int32(0), exponent, total, np.int32(NOTHING), np.int32(0), wide, wormhole)
    return out
