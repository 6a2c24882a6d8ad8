"""Memory on pages of 2 MiB, of which a rank takes again what its earlier jobs have freed.

Whoever copies out of large pages asks the kernel for 512 times fewer. The kernel fills each with zeros before it hands
it out, which takes as long as a copy does; ring attention on 8 ranks spent 2 % of its time so.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

import torch
from torch import Tensor

_LARGE_PAGE = 2 << 20
_MOST_FREE_BYTES = 64 << 20  # as much as refsim.base.heap leaves with a process of what is small
_all: list[mmap.mmap] = []
"""In use or free, those that were asked for last at the end."""


def allocated(size: int) -> Tensor | None:
    """Return ``size`` bytes, whatever they hold, as a tensor of uint8; None if that is less than 4 MiB, or if this
    system has no large pages to ask for.
    """
    if size < 2 * _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    length = size + _LARGE_PAGE
    free = [pages for pages in _free() if len(pages) == length]
    if free:
        pages = free[0]
        _all.remove(pages)
    else:
        pages = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    del free
    _all.append(pages)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    start = -whole.data_ptr() % _LARGE_PAGE
    return whole[start : start + size]


def trim() -> None:
    """Give back what is free beyond 64 MiB, first what was not asked for longest; at the end of a job."""
    total = 0
    for pages in reversed(_free()):
        total += len(pages)
        if total > _MOST_FREE_BYTES:
            _all.remove(pages)


def _free() -> list[mmap.mmap]:
    """Return those that no tensor lies in any more: the list here and the call are all that know them."""
    return [_all[i] for i in range(len(_all)) if sys.getrefcount(_all[i]) == 2]
