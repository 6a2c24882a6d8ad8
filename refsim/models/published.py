"""Configurations of the published models, as their ``config.json`` has them, and the sizes they are run at.

They stand for a model without its weights: full-size random checkpoints, predicted time and memory.
Source: the models' cards and diffusers' classes; parameters counted on meta tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SD35 = {
    "_class_name": "SD3Transformer2DModel",
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "qk_norm": "rms_norm",
}
_COGVIDEOX = {
    "_class_name": "CogVideoXTransformer3DModel",
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


@dataclass(frozen=True)
class PublishedModel:
    """Attributes:
    config: the transformer's ``config.json``.
    parameters: of the transformer (of one expert).
    sizes: named latent sizes: (height, width) or (frames, height, width), before patches.
    text: prompt tokens.
    experts: transformers of this size in the pipeline, which share its denoising steps.
    """

    config: dict[str, Any]
    parameters: int
    sizes: dict[str, tuple[int, ...]]
    text: int
    experts: int = 1


PUBLISHED: dict[str, PublishedModel] = {
    "sd35-medium": PublishedModel(
        _SD35
        | {
            "num_layers": 24,
            "num_attention_heads": 24,
            "caption_projection_dim": 1536,
            "pos_embed_max_size": 384,
            "dual_attention_layers": tuple(range(13)),
        },
        2_243_171_520,
        {"512": (64, 64), "1024": (128, 128)},
        333,
    ),
    "sd35-large": PublishedModel(
        _SD35
        | {
            "num_layers": 38,
            "num_attention_heads": 38,
            "caption_projection_dim": 2432,
            "pos_embed_max_size": 192,
            "dual_attention_layers": (),
        },
        8_056_627_520,
        {"512": (64, 64), "1024": (128, 128)},
        333,
    ),
    "wan22-t2v-a14b": PublishedModel(
        {
            "_class_name": "WanTransformer3DModel",
            "num_layers": 40,
            "num_attention_heads": 40,
            "attention_head_dim": 128,
            "ffn_dim": 13824,
            "in_channels": 16,
            "out_channels": 16,
            "patch_size": (1, 2, 2),
            "text_dim": 4096,
            "freq_dim": 256,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
            "eps": 1e-6,
            "rope_max_seq_len": 1024,
        },
        14_288_491_584,
        {"480p": (21, 60, 104), "720p": (21, 90, 160)},
        512,
        experts=2,
    ),
    "cogvideox-2b": PublishedModel(
        _COGVIDEOX | {"num_layers": 30, "num_attention_heads": 30, "use_rotary_positional_embeddings": False},
        1_693_783_872,
        {"480p": (13, 60, 90)},
        226,
    ),
    "cogvideox-5b": PublishedModel(
        _COGVIDEOX | {"num_layers": 42, "num_attention_heads": 48, "use_rotary_positional_embeddings": True},
        5_570_283_072,
        {"480p": (13, 60, 90)},
        226,
    ),
}


def input_shapes(model: PublishedModel, size: tuple[int, ...], batch: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the diffusers ``forward`` arguments at a latent ``size`` for ``batch`` prompts."""
    c, text = model.config["in_channels"], (batch, model.text, 4096)
    found = {
        "SD3Transformer2DModel": {"hidden_states": (batch, c, *size), "pooled_projections": (batch, 2048)},
        "WanTransformer3DModel": {"hidden_states": (batch, c, *size)},
        "CogVideoXTransformer3DModel": {"hidden_states": (batch, size[0], c, *size[1:])},
    }[model.config["_class_name"]]
    return found | {"encoder_hidden_states": text, "timestep": (batch,)}
