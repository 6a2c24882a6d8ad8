"""Whole pipelines, prompt to pictures: encoders, transformer, scheduler and decoder together."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import Layout, ModelShape, Registry, make_case
from parity.layouts import USP24


def add(found: Registry) -> None:
    """Add the cases of every pipeline."""
    usp = replace(USP24, prompt_layout="split")
    for model, layouts in {
        "sd3_pipeline_tiny": (Layout("t3k", "cfg2_sp2_tp2"), Layout("t3k", "sp2_tp4"), Layout("tg", "cfg2_sp4_tp4")),
        "wan_pipeline_tiny": (Layout("t3k", "sp2_tp4"), Layout("t3k", "cfg2_sp2_tp2"), Layout("galaxy", "sp8_tp4")),
        "cogvideox_2b_pipeline_tiny": (USP24, usp),
        "cogvideox_5b_pipeline_tiny": (USP24, usp, Layout("t3k", "cfg2_sp2_tp2")),
    }.items():
        for layout in layouts:
            found.add(make_case("pipeline", model, layout, ModelShape((), 13, 2), suite="full"))
