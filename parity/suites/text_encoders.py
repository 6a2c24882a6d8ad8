"""Encoders of prompts: T5 and UMT5 with padding, CLIP with its projection."""

from __future__ import annotations

from parity.cases import Layout, ModelShape, Registry, make_case


def add(found: Registry) -> None:
    """Add the cases of the encoders; heads and features are cut over tp."""
    for model in ("t5_tiny", "umt5_tiny"):
        for where in (("t3k", "sp2_tp4"), ("t3k-1x8", "tp8"), ("tg", "sp8_tp4"), ("galaxy", "sp8_tp4")):
            found.add(make_case("text_encoder", model, Layout(*where), ModelShape((), 150, 2), suite="full"))
    for model in ("clip_l_tiny", "clip_g_tiny"):
        for where in (("t3k", "sp2_tp4"), ("tg", "sp8_tp4")):
            found.add(make_case("text_encoder", model, Layout(*where), ModelShape((), 77, 2), suite="full"))
