"""Attention alone: every scheme, family of inputs, mesh, prompt, padding and number of heads; no model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.cases import FAMILIES, AttentionShape, Layout, Registry
from parity.cases.layouts import RING8, ULYSSES8, USP24, USP42, layouts


def add(cases: Registry) -> None:
    """Add the cases of attention alone."""
    _families(cases)
    _layouts(cases)
    _edges(cases)
    _bf16(cases)
    _storage_math(cases)


def _attention(cases: Registry, layout: Layout, **more: Any) -> None:
    shape = AttentionShape(**{k: more.pop(k) for k in list(more) if k in AttentionShape.__dataclass_fields__})
    cases.make("attention", "attention", layout, shape, **more)


def _families(cases: Registry) -> None:
    """Add every input family through every scheme, the prompt replicated, fp32; three in a second layout too."""
    for family in FAMILIES:
        _attention(cases, RING8, family=family, other_layout=ULYSSES8 if family == "normal" else None)
        _attention(cases, ULYSSES8, family=family, other_layout=USP24 if family == "normal" else None)
        _attention(cases, USP24, family=family, other_layout=RING8 if family == "normal" else None)
    for family in FAMILIES:
        for layout in (RING8, ULYSSES8, USP24, USP42, *layouts("t3k-sp4_tp2 tg-sp8_tp4")):
            _attention(cases, layout, family=family, seed=1, suite="full", tag="seed1")


def _layouts(cases: Registry) -> None:
    """Add where the schemes run: meshes, axes, topologies, inside tensor parallel groups; fp32, normal."""
    for layout in layouts(
        "n300-sp2 n300-sp2-ulysses n300-tp2 t3k_1x8-tp8 t3k-sp8-usp_r4u2 t3k_1x8-sp8-usp_r2u4 t3k_1x8-sp8-usp_r4u2 "
        "t3k-sp2_tp4 t3k-sp4_tp2 t3k-sp4_tp2-ulysses t3k-sp4_tp2-usp_r2u2 tg-sp8_tp4 tg-sp4_tp8 tg-sp8_tp4-ulysses "
        "tg-sp8_tp4-usp_r2u4 tg-sp32-usp_r8u4 tg-sp32-usp_r4u8"
    ):
        _attention(cases, layout)

    for layout in layouts("galaxy-sp8_tp4 bh_loudbox-sp4_tp2 bh_qb-sp2_tp2 bh_qb_1x4-sp4"):
        _attention(cases, layout, suite="full")


def _edges(cases: Registry) -> None:
    """Add schedules, prompts, masked padding, heads that do not divide, several chunks, batches, real length."""
    line4 = ("t3k", "sp4_tp2")
    for where in (("t3k-1x8", "sp8"), line4):
        for ring_order in ("gather", "block"):
            _attention(
                cases, Layout(*where, ring_order=ring_order, chunks=(48, 20)), family="fa_rand", tag="chunks48x20"
            )
    _attention(cases, Layout("n300", "sp2", ring_order="gather"))  # of two every other one is the neighbour
    for layout in (RING8, ULYSSES8, USP24, Layout(*line4)):
        _attention(cases, layout, text=0, family="large_logits")
    for layout in (RING8, ULYSSES8, USP24, Layout(*line4)):
        _attention(cases, replace(layout, prompt_layout="split"), text=300, family="outlier_text")
    _attention(cases, RING8, n=256, logical_n=200, tag="logical200of256")
    _attention(cases, RING8, n=512, logical_n=130, tag="logical130of512")
    _attention(cases, ULYSSES8, n=512, logical_n=130, tag="logical130of512")
    _attention(cases, USP24, n=512, logical_n=130, family="constant_rows", tag="logical130of512")
    _attention(cases, Layout(*line4), n=512, logical_n=130, family="constant_rows", tag="logical130of512")
    _attention(cases, Layout("t3k-1x8", "sp8", prompt_layout="split"), n=256, logical_n=200, tag="logical200of256")
    for layout in (ULYSSES8, USP24, Layout("t3k-1x8", "tp8"), Layout("tg", "sp8_tp4", "ulysses")):
        _attention(cases, layout, heads=38, tag="38heads")
    _attention(cases, Layout("t3k", "sp2_tp4"), heads=38, batch=2, tag="38heads_batch2")
    _attention(cases, Layout("t3k", "sp2_tp4"), heads=4, n=4096, text=333, tag="4096tokens")
    for layout in (RING8, USP24):
        _attention(cases, layout, heads=10, n=4096, text=333, tag="4096tokens_10heads", suite="full")  # 12 of usp


def _bf16(cases: Registry) -> None:
    for layout in (*layouts("n300-sp2"), RING8, ULYSSES8, USP24, *layouts("t3k-sp2_tp4 tg-sp8_tp4")):
        _attention(cases, layout, dtype="bf16")
    _attention(cases, RING8, dtype="bf16", family="fa_rand")
    _attention(cases, USP24, dtype="bf16", family="outlier_text")
    for family in FAMILIES[1:]:
        for layout in (ULYSSES8, Layout("t3k", "sp2_tp4"), Layout("tg", "sp8_tp4")):
            _attention(cases, layout, dtype="bf16", family=family, suite="full")


def _storage_math(cases: Registry) -> None:
    """Add ``storage`` math, which runs outside parity have unless they ask for another one, and ``gemm`` math."""
    few = replace(RING8, chunks=(48, 20))
    long = AttentionShape(n=512, logical_n=130)
    for dtype in ("fp32", "bf16"):
        _storage(cases, RING8, AttentionShape(), dtype=dtype, family="outlier_text")
        _storage(cases, few, long, dtype=dtype, tag="logical130of512")
        _storage(cases, ULYSSES8, AttentionShape(), dtype=dtype)
        _gemm(cases, few, long, dtype=dtype, tag="logical130of512")
        _gemm(cases, USP24, AttentionShape(), dtype=dtype, family="large_logits")
        _storage(cases, USP24, long, dtype=dtype, family="constant_rows", tag="logical130of512")
        for layout in (replace(few, ring_order="block"), ULYSSES8):
            _storage(cases, layout, long, dtype=dtype, suite="full", tag="logical130of512")
        for family in ("normal", "large_logits", "fa_rand", "constant_rows"):
            for layout in (RING8, Layout("t3k", "sp4_tp2")):
                _storage(cases, layout, AttentionShape(), dtype=dtype, family=family, suite="full")
                _gemm(cases, layout, AttentionShape(), dtype=dtype, family=family, suite="full")


def _storage(cases: Registry, layout: Layout, shape: AttentionShape, **more: Any) -> None:
    cases.make("attention_storage", "attention", replace(layout, math="storage"), shape, **more)


def _gemm(cases: Registry, layout: Layout, shape: AttentionShape, **more: Any) -> None:
    cases.make("attention_gemm", "attention", replace(layout, math="gemm"), shape, **more)
