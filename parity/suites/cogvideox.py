"""CogVideoX's transformers: the 2b one with its table of positions, the 5b one with rotary positions."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import Layout, Registry
from parity.layouts import RING8, ULYSSES8, USP24, add_transformer


def add(found: Registry) -> None:
    """Add the cases of both transformers."""
    for model in ("cogvideox_2b_tiny", "cogvideox_5b_tiny"):
        for layout in (
            USP24,
            RING8,
            ULYSSES8,
            Layout("t3k-1x8", "tp8"),
            Layout("tg", "sp8_tp4"),
            replace(USP24, prompt_layout="split"),
            replace(RING8, prompt_layout="split"),
        ):
            add_transformer(found, model, layout, latent=(3, 8, 12), text=13, suite="full")
        guided = {
            "guidance": 6.0,
            "other_layout": Layout("t3k", "sp2_tp4"),
            "latent": (3, 8, 12),
            "text": 13,
            "suite": "full",
        }
        add_transformer(found, model, Layout("t3k", "cfg2_sp2_tp2"), **guided)
        add_transformer(found, model, Layout("t3k", "sp2_tp4"), dtype="bf16", latent=(3, 8, 12), text=13, suite="full")
