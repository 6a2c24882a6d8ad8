"""Mutations that nothing can tell from the program, each with the proof; they are not counted.

One that a trace or a unit test tells apart is none, though every answer stays.
"""

from __future__ import annotations

from parity.mutation.sites import Mutation

EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("refsim/layers/convolution.py", "self._kernel // 2", "(self._kernel % 2)"): (
        "decoders of images have kernels of 1 and 3, and of 1 nothing is exchanged: both are 1."
    ),
    (
        "refsim/layers/norm.py",
        "padded_features(features, tp.size) // tp.size",
        "(-(-padded_features(features, tp.size) // tp.size))",
    ): "padded features are whole tiles of every member, so that they divide.",
    ("refsim/pipelines/request.py", "(KeyboardInterrupt, SystemExit)", "(SystemExit, KeyboardInterrupt)"): (
        "one handler for either, in whatever order they are named."
    ),
    ("refsim/pipelines/transformer.py", "16", "17"): "the length of a digest, which is only compared with its like.",
}
"""(file, the source that is changed, what it is changed to) -> why the answers are the same."""


def proof(mutation: Mutation) -> str:
    """Why a mutation is equivalent; empty if it is not known to be."""
    return EQUIVALENT.get((mutation.file, mutation.before, mutation.after), "")
