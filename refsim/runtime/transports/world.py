"""Which rank this process is, whether it was forked here or torchrun started it."""

from __future__ import annotations

import torch.distributed as dist

forked: int | None = None
"""The rank of a process that was forked as one; it may be in no process group of torch."""


def rank() -> int:
    """Return the rank that this process is."""
    return dist.get_rank() if forked is None else forked
