"""What Qwen-Image is, to predictions: diffusers' class, its defaults and its pipeline's (steps, prompt)."""

from __future__ import annotations

from refsim.models.flux1.spec import more_dims
from refsim.models.spec import ModelSpec, Published, TtDit

CLASS_NAME = "QwenImageTransformer2DModel"
_CONFIG = {
    "_class_name": CLASS_NAME,
    "num_layers": 60,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "in_channels": 64,
    "out_channels": 16,
    "joint_attention_dim": 3584,
    "patch_size": 2,
}


SPEC = ModelSpec.of_folder(
    "qwenimage",
    model="refsim.models.outline:OutlinedTransformer",
    config="QwenImageConfig",
    class_names=(CLASS_NAME,),
    kind="transformer",
    figures="refsim.models.qwenimage.figures:FIGURES",
    published=(
        Published("qwen-image", _CONFIG, parameters=20_430_401_088, sizes={"1024": (128, 128)}, text=512, steps=50),
    ),
    timing_only=True,
    latent="image",
    tt_dit=TtDit(cfg=True, fsdp=True, pads_heads=True),
    more_dims=more_dims,
)
