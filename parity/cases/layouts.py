"""Layouts that several suites run on, and how a suite's module adds a case of a kind."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from parity.cases import Layout, ModelShape, Registry

RING8 = Layout("t3k-1x8", "sp8")
ULYSSES8 = Layout("t3k-1x8", "sp8", "ulysses")
USP24 = Layout("t3k", "sp8", "usp", 2, 4)
USP42 = Layout("t3k", "sp8", "usp", 4, 2)


def add_transformer(cases: Registry, model: str, layout: Layout, *, kind: str = "transformer", **more: Any) -> None:
    """Add a case of a transformer; ``more`` are fields of its :class:`ModelShape` and of the case."""
    shape = ModelShape(**{f.name: more.pop(f.name) for f in fields(ModelShape) if f.name in more})
    cases.make(kind, model, layout, shape, **more)
