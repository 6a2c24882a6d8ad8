"""The programs that a buffer policy gives the devices of a mesh axis."""

from __future__ import annotations

from parity.policies.gathered import gathered
from parity.policies.operations import Fabric, Program, Thread
from parity.policies.slotted import slotted
from refsim.base.errors import UserError

POLICIES = ("upstream", "barrier", "alternate", "slots", "credit", "fused", "fused_synced", "no_wait")
LAYERS = 4
"""Enough for every policy to come back to each of its buffers, twice for most."""


def program(
    policy: str, ranks: int, layers: int = LAYERS, tensors: str = "KV", fabric: Fabric | None = None
) -> Program:
    """Return what every thread does under a policy.

    Args:
        tensors: one letter for each that travels; a fused gather has one, ``X``.

    Raises:
        UserError: no such policy, fewer than two ranks or three layers, or a fabric that the policy is not made for.
    """
    fabric = fabric or Fabric()
    if policy not in POLICIES:
        raise UserError(f"policy '{policy}' does not exist; choose one of {', '.join(POLICIES)}.")
    if ranks < 2 or layers < 3:
        raise UserError("a policy needs 2 ranks to go wrong and 3 layers to use all its buffers again; give more.")
    tensors = "X" if policy.startswith("fused") else tensors
    if policy in ("slots", "credit"):
        if fabric.workers or fabric.split:
            raise UserError(
                f"policy '{policy}' is refsim's, which has neither workers nor a split ring; leave them out."
            )
        return [Thread(rank, list(slotted(policy, rank, ranks, layers, tensors, fabric))) for rank in range(ranks)]
    threads = [thread for rank in range(ranks) for thread in gathered(policy, rank, ranks, layers, tensors, fabric)]
    return sorted(threads, key=lambda thread: bool(thread.name))
