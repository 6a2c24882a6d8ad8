"""Models that predictions know and nothing else: no numeric model, so nothing runs them and nothing is judged.

Their sizes are those of public configurations, read as an outline (``refsim/timing/outline.py``); LTX-Video's block is
Wan's in other sizes (self-attention, cross-attention to the prompt, one modulation for all), and is read as Wan's code.
Text encoders and autoencoders are not among refsim's, so denoising alone is predicted.

Sources: diffusers' classes, whose defaults are the published checkpoints', and their pipelines' defaults (steps, size,
prompt); Motif and Mochi: tt_dit's ``transformer_motif.py``, ``pipeline_motif.py`` and ``pipeline_mochi.py``; Flux.2:
tt_dit's ``pipeline_flux2.py@f3a15341`` too. Parameters are those of diffusers' classes on meta tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refsim.models.spec import Config, ModelSpec, Published, TtDit, no_more_dims

_SQUARE = {"1024": (128, 128)}
_OUTLINED = "refsim.timing.outline:OutlinedTransformer"


def _patches(config: Config, size: tuple[int, ...]) -> int:
    """Count the tokens of a latent (frames, height, width), or of one frame: patches of 2 x 2."""
    *frames, height, width = size
    return (frames[0] if frames else 1) * (height // 2) * (width // 2)


def image_tokens(config: Config, size: tuple[int, ...]) -> dict[str, int]:
    """Return how many tokens an image or a video has, with those that the model puts before them."""
    return {"image tokens": _patches(config, size) + config.get("register_token_num", 0)}


def double_and_single(config: Config) -> dict[str, int]:
    """Count double blocks, then single ones, the last of which stands by itself."""
    counts = {"double": config["num_layers"], "single": config["num_single_layers"] - 1, "last": 1}
    return {kind: count for kind, count in counts.items() if count}


def with_double_and_single(config: Config, counts: dict[str, int]) -> Config:
    """Return the configuration with other numbers of blocks."""
    double, single = (counts.get(kind, 0) for kind in ("double", "single"))
    return config | {"num_layers": double, "num_single_layers": single + 1}


def _spec(name: str, class_name: str, config: str, published: Published, **more: Any) -> ModelSpec:
    known = replace(published, config={"_class_name": class_name} | published.config)
    given = {"model": _OUTLINED, "more_dims": image_tokens} | more
    return ModelSpec(name, (class_name,), "transformer", config=config, published=(known,), timing_only=True, **given)


_QWEN_IMAGE = {
    "num_layers": 60,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "in_channels": 64,
    "out_channels": 16,
    "joint_attention_dim": 3584,
    "patch_size": 2,
}
_FLUX2 = {
    "num_layers": 8,
    "num_single_layers": 48,
    "num_attention_heads": 48,
    "attention_head_dim": 128,
    "in_channels": 128,
    "joint_attention_dim": 15360,
    "mlp_ratio": 3.0,
}
_MOCHI = {
    "num_layers": 48,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "pooled_projection_dim": 1536,
    "in_channels": 12,
    "text_embed_dim": 4096,
    "patch_size": 2,
}
_MOTIF = {
    "num_layers": 30,
    "num_attention_heads": 30,
    "attention_head_dim": 64,
    "modulation_dim": 4096,
    "time_embed_dim": 4096,
    "patch_size": 2,
    "register_token_num": 4,
}
_LTX = {
    "num_layers": 28,
    "num_attention_heads": 32,
    "attention_head_dim": 64,
    "in_channels": 128,
    "out_channels": 128,
    "caption_channels": 4096,
}

SPECS = (
    _spec(
        "qwenimage",
        "QwenImageTransformer2DModel",
        "refsim.timing.outline_configs:QwenImage",
        Published("qwen-image", _QWEN_IMAGE, sizes=_SQUARE, text=512, steps=50),
        latent="image",
        tt_dit=TtDit(cfg=True, fsdp=True, pads_heads=True),
    ),
    _spec(
        "flux2",
        "Flux2Transformer2DModel",
        "refsim.timing.outline_configs:Flux2",
        Published("flux2-dev", _FLUX2, sizes=_SQUARE, text=512, steps=50, branches=1),
        latent="image",
        tt_dit=TtDit(cfg=False, fsdp=False, pads_heads=True),
        block_counts=double_and_single,
        with_block_counts=with_double_and_single,
    ),
    _spec(
        "mochi",
        "MochiTransformer3DModel",
        "refsim.timing.outline_configs:Mochi",
        Published("mochi-1", _MOCHI, sizes={"480p": (28, 60, 106)}, text=256, steps=50),
        latent="video",
        tt_dit=TtDit(cfg=False, fsdp=True, pads_heads=False),
    ),
    _spec(
        "motif",
        "MotifTransformer",
        "refsim.timing.outline_configs:Motif",
        Published("motif-6b", _MOTIF, sizes=_SQUARE, text=334, steps=28),  # 77 of CLIP, 256 of T5, the time step's
        latent="image",
        tt_dit=TtDit(cfg=True, fsdp=False, pads_heads=True),
    ),
    _spec(
        "ltx",
        "LTXVideoTransformer3DModel",
        "refsim.timing.outline_configs:LtxVideo",
        Published("ltx-video-2b", _LTX, sizes={"512p": (21, 16, 22)}, text=128, steps=50),
        model="refsim.models.wan22.transformer:WanTransformer",
        more_dims=no_more_dims,
        latent="video",
    ),
)
"""Sizes are of latents: 1024 x 1024 pixels, 168 frames of 480 x 848 (Mochi), 161 of 512 x 704 (LTX-Video)."""
