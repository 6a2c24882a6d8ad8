r"""DRAM and L1 that a whole program takes, read off one capture of ttnn's graph that was made without dispatch.

In such a capture ttnn builds every operation's program and says what is allocated and freed, but takes no memory: what
would not fit is counted like the rest.

    level     ___/''\___/'''''\_____      remaining    what is still there at the end
    of DRAM  /                  peak      peak         the highest level, and the operation under way
"""

from __future__ import annotations

from dataclasses import dataclass

import ttnn

from tt_impl.trace.graph import Node, read


@dataclass(frozen=True)
class Peak:
    """``size`` bytes, first reached while ``op`` was under way."""

    size: int = 0
    op: str = ""


@dataclass(frozen=True)
class Usage:
    """What a program takes beyond what was there before it.

    Attributes:
        remaining, peak: bytes of one device's DRAM, all banks together: at the end, and at most.
        l1_remaining: bytes of each core's L1 at the end: semaphores, and tensors that stay there.
        l1_peak: the same at most, with the circular buffers of the fullest core of the operation under way.
        l1_tensors: of ``l1_peak``, what are tensors and semaphores.
    """

    remaining: int
    peak: Peak
    l1_remaining: int
    l1_peak: Peak
    l1_tensors: int


def usage(nodes: list[Node], device: ttnn.MeshDevice) -> Usage:
    """Read a capture of a whole program on ``device``."""
    graph = read(nodes)
    banks = ttnn.get_memory_view(device, ttnn.BufferType.DRAM).num_banks
    size, op = graph.dram_peak
    highest = Peak()
    tensors = 0
    for operation in graph.ops:
        if operation.cb_bytes + operation.l1 > highest.size:
            highest = Peak(operation.cb_bytes + operation.l1, operation.call)
            tensors = operation.l1
    return Usage(graph.dram * banks, Peak(size * banks, op), graph.l1, highest, tensors)
