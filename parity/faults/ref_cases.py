"""The cases that the faults of the reference are put into, each the smallest that shows what concerns it."""

from __future__ import annotations

from typing import Any

from parity.cases import AttentionShape, Case, Layout, ModelShape, make_case


def _attention(mesh: str, parallel: str, *more: Any, rows: int = 101, **options: Any) -> Case:
    shape = AttentionShape(heads=6, n=112, text=21, logical_n=rows, head_dim=32)
    layout = Layout(mesh, parallel, *more, chunks=(64, 48), **options)
    return make_case("attention", "attention", layout, shape, family="outlier_text")


def _model(mesh: str, parallel: str, batch: int = 1) -> Case:
    shape = ModelShape((12, 20), 29, batch)
    guidance = 4.5 if batch > 1 else None
    return make_case("transformer", "sd35_tiny", Layout(mesh, parallel), shape, guidance=guidance)


RING = _attention("bh-qb-1x4", "sp4")  # 101 tokens as 32 + 32 + 32 + 5 of 32
LINE = _attention("t3k", "sp4_tp2")  # four on a Line
GATHERED = _attention("bh-qb-1x4", "sp4", ring_order="gather")
ULYSSES = _attention("bh-qb-1x4", "sp4", "ulysses")  # 6 heads padded to 8
USP = _attention("bh-qb", "sp4", "usp", 2, 2, rows=70)  # 70 tokens as 32 + 32 + 6 + 0 of 32
SPLIT = _attention("bh-qb-1x4", "sp4", prompt_layout="split")
SERIAL = _model("n150", "sp1")
TP2 = _model("n300", "tp2")  # 3 heads on 2 devices, 48 features in 64 lanes
SP2 = _model("n300", "sp2")
SP2_TP2 = _model("bh-qb", "sp2_tp2")  # two axes of equal size: a wrong axis fits everywhere
CFG2 = _model("n300", "cfg2", batch=2)
