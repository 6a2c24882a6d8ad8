"""What CogVideoX is: its classes, its published sizes, and what runs around its transformer.

Sources: the models' cards and diffusers' classes; parameters counted on meta tensors.
"""

from __future__ import annotations

from refsim.models.spec import Companion, DiffusersParts, ModelSpec, Published

CLASS_NAME = "CogVideoXTransformer3DModel"
_BOTH = {
    "_class_name": CLASS_NAME,
    "attention_head_dim": 64,
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "time_embed_dim": 512,
    "text_embed_dim": 4096,
    "max_text_seq_length": 226,
    "attention_bias": True,
    "norm_eps": 1e-5,
    "norm_elementwise_affine": True,
    "sample_width": 90,
    "sample_height": 60,
    "sample_frames": 49,
    "activation_fn": "gelu-approximate",
    "timestep_activation_fn": "silu",
    "temporal_compression_ratio": 4,
    "spatial_interpolation_scale": 1.875,
    "temporal_interpolation_scale": 1.0,
}
_2B = _BOTH | {"num_layers": 30, "num_attention_heads": 30, "use_rotary_positional_embeddings": False}
_5B = _BOTH | {"num_layers": 42, "num_attention_heads": 48, "use_rotary_positional_embeddings": True}
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
            _2B,
            parameters=1_693_783_872,
            sizes=_SIZES,
            text=226,
            steps=50,
            encoders=_ENCODERS,
            decoder="cogvideox-vae",
        ),
        Published(
            "cogvideox-5b",
            _5B,
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
