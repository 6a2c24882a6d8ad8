"""What Mochi 1 is, to predictions: diffusers' class, tt_dit's pipeline_mochi.py (168 frames of 480 x 848)."""

from __future__ import annotations

from datetime import date
from typing import Any

from refsim.models.spec import Config, Figure, ModelSpec, Published, TtDit

CLASS_NAME = "MochiTransformer3DModel"
_TT_DIT = "tt_dit Mochi_1.md@52393d83, with encoder and decoder, which are not predicted"
_RUN: dict[str, Any] = {"fsdp": True, "day": date(2025, 10, 29), "blocks": "whole", "chunks": (256, 512)}
_JANUARY = _RUN | {
    "source": "tt-metal pull request 34929",
    "day": date(2026, 1, 12),
    "fused": False,
    "chunks": (128, 512),
}
_CONFIG = {
    "_class_name": CLASS_NAME,
    "num_layers": 48,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "pooled_projection_dim": 1536,
    "in_channels": 12,
    "text_embed_dim": 4096,
    "patch_size": 2,
}


def more_dims(config: Config, size: tuple[int, ...]) -> dict[str, int]:
    """Count the tokens of a latent (frames, height, width): its patches."""
    frames, height, width = size
    return {"image tokens": frames * (height // config["patch_size"]) * (width // config["patch_size"])}


SPEC = ModelSpec(
    name="mochi",
    class_names=(CLASS_NAME,),
    kind="transformer",
    model="refsim.models.outline:OutlinedTransformer",
    config="refsim.models.mochi.config:MochiConfig",
    published=(
        Published(
            "mochi-1",
            _CONFIG,
            parameters=10_027_677_744,
            sizes={"480p": (28, 60, 106)},
            text=256,
            steps=50,
            figures=(
                Figure("480p", "t3k", "sp2_tp4", 1260, 50, _TT_DIT, **_RUN),
                Figure("480p", "galaxy", "sp8_tp4", 391, 50, _TT_DIT, **_RUN),
            ),
            others=(
                Figure("480p", "t3k", "sp2_tp4", 1029, 50, **_JANUARY),
                Figure("480p", "galaxy", "sp8_tp4", 323, 50, **_JANUARY),
            ),
        ),
    ),
    timing_only=True,
    latent="video",
    tt_dit=TtDit(cfg=False, fsdp=True, pads_heads=False),
    more_dims=more_dims,
)
