"""The compiled loop of level fast: a destination of 16 bits by the cheap formula, see :mod:`refsim.numerics.cheap`."""

from __future__ import annotations

import numba
import numpy as np

from refsim.numerics.compiled import COLUMNS, ROWS
from refsim.numerics.lanes import add, bits_of_float, both, float_of_bits, sub

_I32 = np.int32
_U64 = np.uint64
_INFINITE = np.int32(0x7F800000)


@numba.njit
def _added(b, row, a, panel, k, dest, index):
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
        before = dest[index, n]
        power = max(both(bits_of_float(x), _INFINITE), both(bits_of_float(y), _INFINITE))
        power = max(power, both(bits_of_float(before), _INFINITE))
        unit = sub(max(power, _I32(20 << 23)), _I32(10 << 23))
        inverse = float_of_bits(sub(_I32(0x7F000000), unit))
        units = np.float32(np.floor(x * inverse + half)) + np.float32(np.floor(y * inverse + half))
        after = before + float_of_bits(unit) * units
        dest[index, n] = float_of_bits(both(add(bits_of_float(after), _I32(0x8000)), _I32(-0x10000)))


@numba.njit(parallel=True, cache=True)
def cheap_dots(b, a, start, phases):
    """Return float32 (M, panels x 64), a 16-bit destination after all of K by the cheap formula.

    Args:
        b: high and low parts of in0, float32 (2, M, K); K is a multiple of 32.
        a: high and low parts of in1, float32 (2, panels, K, 64).
        start: what the destination holds before, float32 (M, panels x 64).
        phases: how many run.
    """
    _, rows, depth = b.shape
    panels = a.shape[1]
    chunks = (rows + ROWS - 1) // ROWS
    out = np.zeros((rows, panels * COLUMNS), np.float32)
    for job in numba.prange(panels * chunks):
        panel = _U64(job // chunks)
        first = (job % chunks) * ROWS
        last = min(first + ROWS, rows)
        columns = slice(np.int64(panel) * COLUMNS, (np.int64(panel) + 1) * COLUMNS)
        dest = start[first:last, columns].copy()
        for tile in range(0, depth, 32):
            for index in range(first, last):
                for phase in range(phases):
                    for k in range(tile, tile + 32, 16):
                        b_part = b[phase >> 1]
                        a_part = a[phase & 1]
                        _added(b_part, _U64(index), a_part, panel, _U64(k), dest, _U64(index - first))
        out[first:last, columns] = dest
    return out
