"""What LTX-Video 2B is, to predictions: diffusers' class and pipeline (161 frames of 512 x 704)."""

from __future__ import annotations

from refsim.models.spec import ModelSpec, Published

CLASS_NAME = "LTXVideoTransformer3DModel"

SPEC = ModelSpec.of_folder(
    "ltx",
    model="refsim.models.wan22.transformer:WanTransformer",
    config="LtxVideoConfig",
    class_names=(CLASS_NAME,),
    kind="transformer",
    published=(Published("ltx-video-2b", parameters=1_923_385_472, sizes={"512p": (21, 16, 22)}, text=128, steps=50),),
    timing_only=True,
    latent="video",
)
