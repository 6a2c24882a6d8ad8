"""What Mochi 1 is, to predictions: diffusers' class, tt_dit's pipeline_mochi.py (168 frames of 480 x 848)."""

from __future__ import annotations

from refsim.models.spec import Config, ModelSpec, Published, TtDit

CLASS_NAME = "MochiTransformer3DModel"


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
    figures="refsim.models.mochi.figures:FIGURES",
    published=(Published("mochi-1", parameters=10_027_677_744, sizes={"480p": (28, 60, 106)}, text=256, steps=50),),
    timing_only=True,
    latent="video",
    tt_dit=TtDit(cfg=False, fsdp=True, pads_heads=False),
    more_dims=more_dims,
)
