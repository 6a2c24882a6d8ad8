"""What a case is, and everything it is made from: suites, inputs, checkpoints, oracles."""

from parity.cases.case import (
    FAMILIES,
    AttentionShape,
    BlockShape,
    Case,
    GenerationShape,
    Layout,
    ModelShape,
    Registry,
    make_case,
)

__all__ = [
    "FAMILIES",
    "AttentionShape",
    "BlockShape",
    "Case",
    "GenerationShape",
    "Layout",
    "ModelShape",
    "Registry",
    "make_case",
]
