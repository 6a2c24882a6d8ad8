"""What Qwen-Image is, to predictions: diffusers' class, its defaults and its pipeline's (steps, prompt)."""

from __future__ import annotations

from refsim.models.flux1.spec import more_dims
from refsim.models.spec import ModelSpec, Published, TtDit

CLASS_NAME = "QwenImageTransformer2DModel"

SPEC = ModelSpec.of_folder(
    "qwenimage",
    model="refsim.models.outline:OutlinedTransformer",
    config="QwenImageConfig",
    class_names=(CLASS_NAME,),
    kind="transformer",
    figures="refsim.models.qwenimage.figures:FIGURES",
    published=(Published("qwen-image", parameters=20_430_401_088, sizes={"1024": (128, 128)}, text=512, steps=50),),
    timing_only=True,
    latent="image",
    tt_dit=TtDit(cfg=True, fsdp=True, pads_heads=True),
    more_dims=more_dims,
)
