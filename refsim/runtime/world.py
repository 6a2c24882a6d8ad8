"""All ranks of a run as one of them sees them, and gloo's process group, which they join once something asks for it.

Ranks that were forked here move tensors out of each other's memory (:mod:`refsim.runtime.shared_transport`); connecting
each of them with each other by sockets, and keeping gloo's threads awake, would be for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """
    Attributes:
        rank: this process's.
        size: how many ranks there are.
        join: joins gloo's default process group, which every rank has to do at the same time.
    """

    rank: int
    size: int
    join: Callable[[], None]


forked: World | None = None
"""What whoever forked this rank has told it; None where the process group was there first, as with torchrun."""


def rank() -> int:
    """Return the rank that this process is."""
    return dist.get_rank() if forked is None else forked.rank


def join_gloo() -> tuple[int, int]:
    """Join gloo's default process group unless that has been done; this rank, and how many there are."""
    if forked is not None and not dist.is_initialized():
        forked.join()
    return dist.get_rank(), dist.get_world_size()
