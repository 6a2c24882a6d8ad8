"""One expert of Wan2.2: tiny through every scheme, 3 x 4 x 6 patches; then at real widths, 480 of its tokens."""

from __future__ import annotations

from parity.cases import Layout, Registry
from parity.layouts import RING8, ULYSSES8, USP24, add_transformer


def add(found: Registry) -> None:
    """Add the cases of the transformer."""
    tiny = {"latent": (3, 8, 12), "text": 29, "suite": "full"}
    for layout in (
        Layout("t3k", "sp2_tp4"),
        RING8,
        ULYSSES8,
        USP24,
        Layout("t3k-1x8", "tp8"),
        Layout("tg", "sp8_tp4"),
        Layout("tg", "sp4_tp8"),
        Layout("galaxy", "sp8_tp4"),
    ):
        add_transformer(found, "wan22_tiny", layout, **tiny)
    for parallel in ("cfg2_sp2_tp2", "cfg2_tp4"):
        layout, fusion = Layout("t3k", parallel), Layout("t3k", "sp2_tp4")
        add_transformer(found, "wan22_tiny", layout, guidance=4.0, other_layout=fusion, **tiny)
    for layout in (Layout("t3k", "sp2_tp4"), USP24):
        add_transformer(found, "wan22_tiny", layout, dtype="bf16", **tiny)
    real = {"latent": (2, 24, 40), "text": 512, "batch": 1, "suite": "full", "needs_gb": 14}
    add_transformer(found, "wan22_a14b", Layout("t3k", "sp2_tp4"), **real)
    add_transformer(found, "wan22_a14b", Layout("t3k", "sp2_tp4"), dtype="bf16", **real)
