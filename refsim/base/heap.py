"""Memory of this process that is free, and kept for what it asks for next."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

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


def give_back() -> None:
    """Give what :func:`keep_freed` has kept back to the system. Elsewhere than with glibc nothing changes."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_zeros(address: int, size_bytes: int) -> None:
    """Give the pages of zeros that no file holds back to the system: whoever reads them finds zeros, and no memory.

    Elsewhere than with Linux nothing changes. Memory that is shared with another process must not be given here.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    with contextlib.suppress(AttributeError, OSError):
        if last > first:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
