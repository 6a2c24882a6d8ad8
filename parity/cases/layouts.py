"""Layouts that several suites run on, and how a suite's module adds a case of a kind."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from parity.cases import Layout, ModelShape, Registry

_WORDS = {"split": {"prompt_layout": "split"}, "gather": {"ring_order": "gather"}, "block": {"ring_order": "block"}}
_WORDS["ulysses"] = {"attention": "ulysses"}


def layouts(ids: str) -> list[Layout]:
    """Return layouts that are written as in ids of cases, ring left out: ``t3k-sp8-usp_r2u4-split bh_qb-sp2_tp2``."""
    return [_layout(*one.split("-")) for one in ids.split()]


def _layout(mesh: str, parallel: str, *words: str) -> Layout:
    chosen: dict[str, Any] = {}
    for word in words:
        factors = re.fullmatch(r"usp_r(\d+)u(\d+)", word)
        usp = factors and {"attention": "usp", "ring": int(factors[1]), "ulysses": int(factors[2])}
        chosen |= usp or _WORDS[word]
    return Layout(mesh.replace("_", "-"), parallel, **chosen)


RING8, ULYSSES8, USP24, USP42 = layouts("t3k_1x8-sp8 t3k_1x8-sp8-ulysses t3k-sp8-usp_r2u4 t3k-sp8-usp_r4u2")


def add_transformer(cases: Registry, model: str, layout: Layout, *, kind: str = "transformer", **more: Any) -> None:
    """Add a case of a transformer; ``more`` are fields of its :class:`ModelShape` and of the case."""
    shape = ModelShape(**{f.name: more.pop(f.name) for f in fields(ModelShape) if f.name in more})
    cases.make(kind, model, layout, shape, **more)
