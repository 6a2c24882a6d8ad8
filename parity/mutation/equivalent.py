"""Mutations that leave every answer of the programs as it is, each with the proof; they are not counted."""

from __future__ import annotations

from parity.mutation.sites import Mutation

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "refsim/parallel/usp.py",
        ": n + prompt[0].shape[2]",
        ":n + prompt[0].shape[2] + 1",
    ): "Where the prompt asks, the answers have n + L rows and end there anyway; where it is silent, the row too many "
    "is in the prompt's answer, which the last block drops (JointAttention without an output projection).",
    (
        "refsim/parallel/kv_ring.py",
        'device.options.ring_order == "block"',
        "(device.options.ring_order != 'block')",
    ): "The two orders exchange names: the same elements reach the same memory in the same order, and are attended "
    "block after block, in pieces of another size; that is seen in the trace, not in an answer.",
}
"""(file, the source that is changed, what it is changed to) -> why the answers are the same."""


def proof(mutation: Mutation) -> str:
    """Why a mutation is equivalent; empty if it is not known to be."""
    return EQUIVALENT.get((mutation.file, mutation.before, mutation.after), "")
