r"""DRAM and L1 that a whole program takes, read off one capture of ttnn's graph that was made without dispatch.

In such a capture ttnn builds every operation's program and says what is allocated and freed, but takes no memory: what
would not fit is counted like the rest.

    level     ___/''\___/'''''\_____      kept    what is still there at the end
    of DRAM  /                  peak      peak    the highest level, and the operation under way
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tt_impl.trace.optable import SIGN, Levels, bank_bytes, table


@dataclass(frozen=True)
class Peak:
    """``size`` bytes, first reached while ``op`` was under way."""

    size: int = 0
    op: str = ""

    def after(self, size: int, op: str) -> Peak:
        """The higher one of this and ``size`` in ``op``."""
        return Peak(size, op) if size > self.size else self


@dataclass(frozen=True)
class Usage:
    """What a program takes beyond what was there before it.

    Attributes:
        kept, peak: bytes of one device's DRAM, all banks together: at the end, and at most.
        l1_kept: bytes of each core's L1 at the end: semaphores, and tensors that stay there.
        l1_peak: the same at most, with the circular buffers of the fullest core of the operation under way.
        l1_tensors: of ``l1_peak``, what are tensors and semaphores.
    """

    kept: int
    peak: Peak
    l1_kept: int
    l1_peak: Peak
    l1_tensors: int


def usage(graph: list[dict[str, Any]], dram_banks: int) -> Usage:
    """Read a capture of a whole program."""
    dram, l1, peak, running = 0, 0, Peak(), []
    for node in graph:
        kind, params = node["node_type"], node["params"]
        if kind == "function_start":
            running.append(params["name"])
        elif kind == "function_end":
            running.pop()
        elif kind in SIGN and params["type"] == "DRAM":
            dram += SIGN[kind] * bank_bytes(params) * dram_banks
            peak = peak.after(dram, running[0] if running else "")
        elif kind in SIGN and params["type"] == "L1":
            l1 += SIGN[kind] * bank_bytes(params)
    highest, tensors = Peak(), 0
    for row in table(graph, None, None, Levels(0, 0, dram_banks, 0)):
        reached = highest.after(row["cb_bytes"] + row["l1_bytes"], row["op"])
        highest, tensors = reached, row["l1_bytes"] if reached is not highest else tensors
    return Usage(dram, peak, l1, highest, tensors)
