"""What Motif-6B is, to predictions: tt_dit's transformer_motif.py and pipeline_motif.py."""

from __future__ import annotations

from refsim.models.spec import Companion, Config, ModelSpec, Published, TtDit

CLASS_NAME = "MotifTransformer"

_TEXT = 77 + 256 + 1  # of CLIP, of T5, and the time step


def more_dims(config: Config, size: tuple[int, ...]) -> dict[str, int]:
    """Count the tokens of a latent (height, width): its patches, and the model's own before them."""
    patch = config["patch_size"]
    return {"image tokens": (size[0] // patch) * (size[1] // patch) + config["register_token_num"]}


SPEC = ModelSpec.of_folder(
    "motif",
    model="refsim.models.motif.transformer:MotifTransformer",
    config="MotifConfig",
    class_names=(CLASS_NAME,),
    kind="transformer",
    figures="refsim.models.motif.figures:FIGURES",
    published=(
        Published(
            "motif-6b",
            sizes={"1024": (128, 128)},
            text=_TEXT,
            steps=28,
            encoders=(
                Companion("clip_l", "clip-l", tokens=77),
                Companion("clip_g", "clip-g", tokens=77),
                Companion("t5", "t5-xxl", tokens=256),
            ),
            decoder="sd35-vae",
        ),
    ),
    timing_only=True,
    latent="image",
    tt_dit=TtDit(cfg=True, fsdp=False, pads_heads=True),
    more_dims=more_dims,
)
