"""What Mochi 1 is, to predictions: diffusers' class, tt_dit's pipeline_mochi.py (168 frames of 480 x 848)."""

from __future__ import annotations

from datetime import date
from typing import Any

from refsim.models.spec import Config, Figure, ModelSpec, Published, TtDit

CLASS_NAME = "MochiTransformer3DModel"
_TT_DIT = "tt_dit Mochi_1.md@52393d83; host, encoder and decoder as in a run of January on T3000"
_RUN: dict[str, Any] = {"fsdp": True, "day": date(2025, 10, 29), "blocks": "whole", "chunks": (256, 512)}
_OCTOBER = _RUN | {"busy": 0.33}  # Mochi_1.md@18013a06
_JANUARY = _RUN | {
    "source": "tt-metal pull request 34929",
    "day": date(2026, 1, 12),
    "fused": False,
    "chunks": (128, 512),
}
_BEYOND = Figure("480p", "t3k", "sp2_tp4", 1029, 50, **_JANUARY)
"""What it takes beyond its denoising (predicted: some 900 s), the other figures take as well, whatever the mesh: until
3 June 2026 (44201) the host made the rotation's tables of all heads, 24 x 45056 x 128 twice, in each of the 100
forwards (transformer_mochi.py, prepare_rope_features) and stepped the solver; besides an encoder on the host, 4 s, and
the decoder, 55 s at most on T3000 and 22 s on a Galaxy (limits of test_performance_mochi.py@18013a06)."""
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


SPEC = ModelSpec.of_folder(
    "mochi",
    model="refsim.models.outline:OutlinedTransformer",
    config="MochiConfig",
    class_names=(CLASS_NAME,),
    kind="transformer",
    published=(
        Published(
            "mochi-1",
            _CONFIG,
            parameters=10_027_677_744,
            sizes={"480p": (28, 60, 106)},
            text=256,
            steps=50,
            figures=(
                Figure("480p", "t3k", "sp2_tp4", 1260, 50, _TT_DIT, **_OCTOBER, rest=_BEYOND),
                Figure("480p", "galaxy", "sp8_tp4", 391, 50, _TT_DIT, **_OCTOBER, rest=_BEYOND),
            ),
            others=(Figure("480p", "galaxy", "sp8_tp4", 323, 50, **_JANUARY, rest=_BEYOND),),
        ),
    ),
    timing_only=True,
    latent="video",
    tt_dit=TtDit(cfg=False, fsdp=True, pads_heads=False),
    more_dims=more_dims,
)
