"""Memory of this process that is free, and kept for what it asks for next."""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed(largest_bytes: int = 32 << 20) -> None:
    """Have this process take freed memory of up to ``largest_bytes`` again, not ask the system anew every time.

    glibc comes to the same by itself, but not for tensors of one size that are freed and asked for in turn. Of what is
    free at the end of the heap it keeps twice as much. Elsewhere than with glibc nothing changes.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, largest_bytes)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * largest_bytes)
