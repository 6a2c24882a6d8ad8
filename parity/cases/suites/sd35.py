"""Stable Diffusion 3.5: a tiny transformer through every scheme, the real widths, the real sizes; blocks in TTNN."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import BlockShape, Layout, Registry
from parity.cases.layouts import RING8, ULYSSES8, USP24, USP42, add_transformer, layouts


def add(cases: Registry) -> None:
    """Add the cases of the transformer, on CPU ranks and in TTNN."""
    _tiny(cases)
    _real_widths(cases, "sd35_medium")
    _real_widths(cases, "sd35_large")
    _full_size(cases)
    _ttnn(cases)


def _tiny(cases: Registry) -> None:
    """Add four blocks, every branch, 3 heads, 240 image tokens of a latent that is not square; batch 2."""
    small = {"text": 29}
    for layout in layouts(
        "n300-sp2 n300-sp2-ulysses n300-sp2-split n300-tp2 t3k_1x8-sp8 t3k_1x8-sp8-ulysses t3k_1x8-tp8 "
        "t3k_1x8-sp8-gather t3k_1x8-sp8-block t3k_1x8-sp8-ulysses-split t3k_1x8-sp8-usp_r4u2 t3k-sp8-usp_r2u4 "
        "t3k-sp8-usp_r4u2 t3k-sp2_tp4 t3k-sp4_tp2-ulysses t3k-sp4_tp2-usp_r2u2 t3k-sp4_tp2-split tg-sp8_tp4"
    ):
        add_transformer(cases, "sd35_tiny", layout, **small)
    for layout, fusion in (
        (Layout("n300", "cfg2"), Layout("n300", "tp2")),
        (Layout("t3k", "cfg2_sp2_tp2"), Layout("t3k", "sp2_tp4")),
        (Layout("t3k", "cfg2_sp4"), Layout("t3k", "sp4_tp2")),
        (Layout("t3k", "cfg2_tp4"), None),
        (Layout("t3k", "cfg2_sp4", "usp", 2, 2), USP24),
        (Layout("tg", "cfg2_sp4_tp4"), None),
        (Layout("tg", "cfg2_sp16", "usp", 4, 4), None),
    ):
        add_transformer(cases, "sd35_tiny", layout, guidance=4.5, other_layout=fusion, **small)
    add_transformer(cases, "sd35_tiny", RING8, latent=(12, 20), batch=1, tag="60tokens_6empty_shards", **small)
    for layout in (Layout("n300", "sp2"), RING8, USP24):
        add_transformer(cases, "sd35_tiny", layout, dtype="bf16", **small)
    add_transformer(cases, "sd35_tiny", Layout("t3k", "cfg2_sp2_tp2"), dtype="bf16", guidance=4.5, **small)
    for dtype in ("fp32", "bf16"):
        for math in ("storage", "gemm"):
            add_transformer(cases, "sd35_tiny", Layout("t3k", "sp4_tp2", math=math), dtype=dtype, **small)
    more = {"suite": "full", "seed": 1, "tag": "seed1", **small}
    for layout in (RING8, ULYSSES8, USP42, Layout("t3k", "sp2_tp4"), Layout("tg", "cfg2_sp4_tp4")):
        add_transformer(cases, "sd35_tiny", layout, **more)
        add_transformer(cases, "sd35_tiny", layout, family="fa_rand", **more)


def _real_widths(cases: Registry, model: str) -> None:
    """Add two blocks at full width, 240 image tokens: shards of 32 rows of which the last holds 16.

    In ``smoke`` medium in fp32, beside large in bf16 at 512 px. In fp32 each layout but
    the guided one runs at one of the widths; bf16 has other layouts, the same at both.
    """
    guided = Layout("t3k", "cfg2_sp2_tp2")
    wide = {"needs_gb": 6, "text": 29}
    large = model == "sd35_large"
    add_transformer(cases, model, guided, guidance=4.5, suite="full" if large else "smoke", **wide)
    add_transformer(cases, model, guided, dtype="bf16", guidance=4.5, suite="full", **wide)
    add_transformer(cases, model, RING8, dtype="bf16", suite="full", **wide)
    mediums = "t3k-sp8-usp_r2u4 t3k_1x8-sp8-ulysses t3k-sp4_tp2-usp_r2u2"
    larges = "t3k_1x8-sp8 tg-cfg2_sp4_tp4 t3k_1x8-tp8 tg-sp4_tp8"
    for layout in layouts(larges if large else mediums):
        add_transformer(cases, model, layout, suite="full", **wide)
    for layout in layouts("t3k_1x8-sp8-ulysses t3k_1x8-tp8 t3k-sp4_tp2-usp_r2u2 tg-sp4_tp8"):
        add_transformer(cases, model, layout, dtype="bf16", suite="full", **wide)


def _full_size(cases: Registry) -> None:
    """Add SD3.5 at 512 px, 1024 + 333 tokens, and in ``full`` at 1024 px, 4096 + 333: tp4 makes its 38 heads 40.

    Of a guided step of 1024 px, all of its blocks, ``refsim bench full-size --check`` judges the answer.

    One whole ordinary block and, since a transformer of one block would only have the last kind, the last block,
    which drops the prompt.
    """
    cut = Layout("t3k", "sp2_tp4")
    half = {"latent": (64, 64), "text": 333, "tag": "512px"}
    add_transformer(cases, "sd35_large", cut, dtype="bf16", batch=1, needs_gb=8, **half)
    half |= {"suite": "full", "needs_gb": 8}
    add_transformer(cases, "sd35_large", cut, batch=1, **half)
    add_transformer(cases, "sd35_large", USP24, dtype="bf16", batch=1, **half)
    add_transformer(cases, "sd35_medium", cut, dtype="bf16", batch=1, **half)
    full = {"suite": "full", "needs_gb": 9, "latent": (128, 128), "text": 333, "tag": "1024px"}
    add_transformer(cases, "sd35_large", cut, dtype="bf16", batch=1, **full)


_TTNN_LAYOUTS = layouts(  # 38 heads over tp8 become 40
    "n300-tp2 t3k-cfg2_sp2_tp2 t3k-sp2_tp4 t3k_1x8-tp8 galaxy-cfg2_sp4_tp4 bh_qb_1x4-tp4 bh_loudbox-sp2_tp4"
)


def _ttnn(cases: Registry) -> None:
    """Add cases where the TTNN program runs, judged against refsim in bf16."""
    kind = {"kind": "ttnn_transformer", "dtype": "bf16"}
    # What real widths below do not cover, at three heads of 64.
    for layout in layouts(
        "n300-cfg2 t3k-sp4_tp2-ulysses t3k-sp8-usp_r2u4 t3k-sp8-usp_r4u2 t3k_1x8-sp8 tg-cfg2_sp4_tp4 bh_qb-sp2_tp2"
    ):
        guidance = 4.5 if "cfg" in layout.parallel else None
        add_transformer(cases, "sd35_tiny64", layout, guidance=guidance, text=29, **kind)
    for layout in (Layout("t3k", "sp4_tp2"), Layout("t3k", "sp4_tp2", "ulysses"), USP24, Layout("bh-qb", "sp2_tp2")):
        split = replace(layout, prompt_layout="split")
        suite = "smoke" if layout is USP24 else "full"
        add_transformer(cases, "sd35_tiny64", split, text=141, suite=suite, **kind)  # the second device of every ring
    few = BlockShape(64, 72)  # of so few keys one counts; and 72 tokens of a prompt reach the second device
    split = Layout("t3k", "sp2_tp4", prompt_layout="split")
    cases.make("ttnn_block", "sd35_medium_block", split, few, dtype="bf16", needs_gb=4, tag="few_keys")
    for model in ("sd35_medium", "sd35_large"):
        for layout in _TTNN_LAYOUTS:
            cases.make("ttnn_block", f"{model}_block", layout, BlockShape(), dtype="bf16", needs_gb=4)
        low = {"dtype": "bfp8_b", "suite": "smoke" if model == "sd35_medium" else "full", "needs_gb": 4}
        cases.make("ttnn_block", f"{model}_block", Layout("t3k", "sp2_tp4"), BlockShape(), **low)
        for layout in _TTNN_LAYOUTS:
            guidance = 4.5 if "cfg" in layout.parallel else None
            batch = 2 if guidance else 1
            add_transformer(cases, model, layout, guidance=guidance, batch=batch, needs_gb=8, **kind)
