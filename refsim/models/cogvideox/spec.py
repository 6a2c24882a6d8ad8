"""What CogVideoX is: its classes, its published sizes, and what runs around its transformer.

Sources: the models' cards and diffusers' classes; parameters counted on meta tensors.
"""

from __future__ import annotations

from refsim.models.spec import Companion, DiffusersParts, ModelSpec, Published

CLASS_NAME = "CogVideoXTransformer3DModel"
_SIZES = {"480p": (13, 60, 90)}
_ENCODERS = (Companion("t5", "t5-xxl", tokens=226),)

SPEC = ModelSpec.of_folder(
    "cogvideox",
    model="transformer:CogVideoXTransformer",
    config="CogVideoXConfig",
    pipeline="cogvideox:CogVideoXPipeline",
    class_names=(CLASS_NAME,),
    kind="transformer",
    latent="video",
    channel_dim=2,
    published=(
        Published(
            "cogvideox-2b",
            parameters=1_693_783_872,
            sizes=_SIZES,
            text=226,
            steps=50,
            encoders=_ENCODERS,
            decoder="cogvideox-vae",
        ),
        Published(
            "cogvideox-5b",
            parameters=5_570_283_072,
            sizes=_SIZES,
            text=226,
            steps=50,
            encoders=_ENCODERS,
            decoder="cogvideox-vae",
            reported=("480p",),
        ),
    ),
    diffusers=DiffusersParts("transformer_blocks", ("attn1",), prompt_first=True, rotary=("image_rotary_emb", 0)),
)
