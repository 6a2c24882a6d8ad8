"""What Mochi 1 is: its classes, its published size (168 frames of 480 x 848, as tt_dit's pipeline_mochi.py makes them).

Sources: the model's card and diffusers' classes; parameters counted on meta tensors.
"""

from __future__ import annotations

from refsim.models.spec import Companion, ModelSpec, Published, TtDit

CLASS_NAME = "MochiTransformer3DModel"
_MOCHI = Published("mochi-1", parameters=10_027_677_744, sizes={"480p": (28, 60, 106)}, text=256, steps=50)

SPEC = ModelSpec.of_folder(
    "mochi",
    model="transformer:MochiTransformer",
    config="MochiConfig",
    pipeline="mochi:MochiPipeline",
    class_names=(CLASS_NAME,),
    kind="transformer",
    figures="refsim.models.mochi.figures:FIGURES",
    published=(_MOCHI.but(encoders=(Companion("t5", "t5-xxl", tokens=256),), decoder="mochi-vae"),),
    latent="video",
    tt_dit=TtDit(cfg=False, fsdp=True, pads_heads=False),
)
