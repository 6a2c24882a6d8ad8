"""What Qwen-Image is: its class, its published configurations, and its pipeline's defaults (steps, prompt)."""

from __future__ import annotations

from refsim.models.flux1.spec import more_dims
from refsim.models.spec import ModelSpec, Published, TtDit

CLASS_NAME = "QwenImageTransformer2DModel"

SPEC = ModelSpec.of_folder(
    "qwenimage",
    model="transformer:QwenImageTransformer",
    config="QwenImageConfig",
    class_names=(CLASS_NAME,),
    kind="transformer",
    figures="refsim.models.qwenimage.figures:FIGURES",
    published=(Published("qwen-image", parameters=20_430_401_088, sizes={"1024": (128, 128)}, text=512, steps=50),),
    ttnn=None,
    channel_dim=2,
    latent="image",
    tt_dit=TtDit(cfg=True, fsdp=True, pads_heads=True),
    more_dims=more_dims,
)
