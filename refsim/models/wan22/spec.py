"""What Wan2.2 is: its classes, the published size of text-to-video, and what runs around its two experts.

Sources: the model's card and diffusers' classes; parameters counted on meta tensors.
"""

from __future__ import annotations

from refsim.models.spec import Companion, DiffusersParts, ModelSpec, Published, TtDit

CLASS_NAME = "WanTransformer3DModel"

SPEC = ModelSpec.of_folder(
    "wan22",
    model="transformer:WanTransformer",
    config="WanConfig",
    pipeline="wan:WanPipeline",
    class_names=(CLASS_NAME,),
    kind="transformer",
    latent="video",
    figures="refsim.models.wan22.figures:FIGURES",
    published=(
        Published(
            "wan22-t2v-a14b",
            parameters=14_288_491_584,
            sizes={"480p": (21, 60, 104), "720p": (21, 90, 160)},
            text=512,
            experts=2,
            steps=40,
            encoders=(Companion("umt5", "umt5-xxl", tokens=512),),
            decoder="wan21-vae",
            reported=("480p", "720p"),
        ),
        Published(
            "wan22-ti2v-5b",
            parameters=4_999_787_712,
            sizes={"720p": (31, 44, 80)},  # 121 frames of 704 x 1280
            text=512,
            steps=50,
            ratios=(4, 16),  # of its own autoencoder, which is not among refsim's
        ),
    ),
    diffusers=DiffusersParts("blocks", ("attn1",), prompt_first=None, rotary=("rotary_emb", 1)),
    tt_dit=TtDit(cfg=False, fsdp=True, pads_heads=False),
)
