"""Mutations that nothing can tell from the program, each with the proof; they are not counted.

One that a trace or a unit test tells apart is none, though every answer stays.
"""

from __future__ import annotations

from parity.mutation.sites import Mutation

EQUIVALENT: dict[tuple[str, str, str], str] = {}
"""(file, the source that is changed, what it is changed to) -> why the answers are the same."""


def proof(mutation: Mutation) -> str:
    """Why a mutation is equivalent; empty if it is not known to be."""
    return EQUIVALENT.get((mutation.file, mutation.before, mutation.after), "")
