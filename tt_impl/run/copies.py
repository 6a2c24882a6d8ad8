"""Copies of one tensor on all devices: equal, or apart by rounding, as those behind a ring are on a device.

Each device of a ring merges the blocks of keys in another order, so what all of them hold whole (the prompt's tokens)
is rounded otherwise on each. The program goes on with device 0's copy; how far the others are from it is noted. A copy
that is farther than rounding comes to is another tensor, and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from refsim.base.errors import InvariantError

BOUND = 0.1
"""Of the relative RMSE between two copies. One streaming attention is 2.5e-2 from exact (1 - PCC 3.1e-4), and two that
share nothing are sqrt(2) times that apart: 3.5e-2, times a margin of three, which leaves room for the blocks behind it.
A device that lacks a shard, a bias or a sum is beyond 0.3."""


@dataclass(frozen=True)
class Copies:
    """A tensor whose copies differ by rounding.

    Attributes:
        shape: of a copy.
        device: the one whose copy is farthest from device 0's.
        rel_rmse: RMS of that difference over the RMS of device 0's copy.
        bound: what it may be.
    """

    shape: list[int]
    device: int
    rel_rmse: float
    bound: float = BOUND

    def __str__(self) -> str:
        return (
            f"copies of {self.shape} differ between devices by {self.rel_rmse:.1e} of their size, device "
            f"{self.device}'s most (up to {self.bound:g} is rounding); device 0's is taken"
        )


_noted: ContextVar[list[Copies] | None] = ContextVar("copies", default=None)


@contextmanager
def noting() -> Iterator[list[Copies]]:
    """Collect the tensors whose copies differ meanwhile."""
    entries: list[Copies] = []
    token = _noted.set(entries)
    try:
        yield entries
    finally:
        _noted.reset(token)


def first(copies: Sequence[torch.Tensor], *, rounds: bool) -> torch.Tensor:
    """Return device 0's copy of a tensor that every device holds whole.

    Args:
        copies: one a device, in their order.
        rounds: kernels round, so that floating-point copies may differ by up to ``BOUND``; whoever is ``noting`` gets
            to know. Otherwise, and of integers, they are equal.

    Raises:
        InvariantError: two copies differ, or by more than rounding.
    """
    apart = [i for i, copy in enumerate(copies) if not torch.equal(copy, copies[0])]
    if not apart:
        return copies[0]
    if not rounds or not copies[0].is_floating_point():
        raise InvariantError("devices that should hold the same tensor differ in it")
    size = copies[0].double().square().mean().sqrt()
    differences = {i: float((copies[i].double() - copies[0].double()).square().mean().sqrt() / size) for i in apart}
    device = max(differences, key=lambda i: (not differences[i] <= BOUND, differences[i]))
    if not differences[device] <= BOUND:
        raise InvariantError(
            "devices that should hold the same tensor differ in it by more than rounding: device "
            f"{device}'s copy is {differences[device]:.2g} of its size from device 0's, rounding comes to {BOUND:g}"
        )
    entries = _noted.get()
    if entries is not None:
        entries.append(Copies(list(copies[0].shape), device, differences[device]))
    return copies[0]
