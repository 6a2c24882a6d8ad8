"""A tiny case of every model in each storage dtype, on a line of two devices and on a square of four.

The norms of these models see a variance as small as their epsilon (see :func:`parity.cases.checkpoints.quiet`), so
that a wrong epsilon shows as much as a missing norm. Sizes divide by nothing.
"""

from __future__ import annotations

from dataclasses import replace

from parity.cases import Layout, ModelShape, Registry
from parity.cases.checkpoints import MODELS, quiet, register

_LAYOUTS = (Layout("n300", "sp2"), Layout("bh-qb", "sp2_tp2"))
_HEADS = (Layout("n300", "tp2"), Layout("bh-qb", "sp2_tp2"))

_PICTURE = ModelShape((22, 42), 29, 2)
"""11 x 21 patches, which leave odd margins of a table of 24 x 24."""
_VIDEO = ModelShape((3, 8, 12), 29, 2)
_DEEP = ModelShape((4, 8, 12), 29, 2)
_LATENT = ModelShape((7, 9), 0, 1)
_FRAMES = ModelShape((2, 5, 4), 0, 1)
_CHUNKS = replace(_FRAMES, latent=(7, 5, 4))
"""Frames that CogVideoX's decoder takes in three chunks, of which the first one is longer."""
_PROMPTS = ModelShape((), 45, 2)

_STREAM = ("to_q", "to_k", "add_q_proj", "add_k_proj", "to_out.0", "to_add_out", "net.2")
_SINGLE = "single_transformer_blocks.0.proj_out"
_T5 = ("shared", "SelfAttention.o", "DenseReluDense.wo")
_CLIP = ("token_embedding", "position_embedding", "out_proj", "fc2")
_QWEN3 = ("embed_tokens", "q_proj", "k_proj", "o_proj", "experts.down_proj")
_PICTURES = ("conv_in", "conv1", "conv2", "conv_shortcut", "to_out.0")

_MODELS: dict[str, tuple[str, ModelShape, tuple[str, ...]]] = {
    # model: kind of case, shape, what is quiet
    "sd35_tiny": ("transformer", _PICTURE, ("pos_embed", "context_embedder", *_STREAM)),
    "flux1_tiny": ("transformer", _PICTURE, ("x_embedder", "context_embedder", _SINGLE, *_STREAM)),
    "wan22_tiny": ("transformer", _VIDEO, ("patch_embedding", *_STREAM)),
    "cogvideox_2b_tiny": ("transformer", replace(_VIDEO, text=13), ("patch_embed", *_STREAM)),
    "cogvideox_5b_tiny": ("transformer", _VIDEO, ("patch_embed", *_STREAM)),
    "cogvideox_15_tiny": ("transformer", _DEEP, ("patch_embed", *_STREAM)),
    "t5_tiny": ("text_encoder", _PROMPTS, _T5),
    "umt5_tiny": ("text_encoder", _PROMPTS, _T5),
    "clip_l_tiny": ("text_encoder", _PROMPTS, _CLIP),
    "clip_g_tiny": ("text_encoder", _PROMPTS, _CLIP),
    "clip_plain_tiny": ("text_encoder", _PROMPTS, _CLIP),
    "qwen3_moe_tiny": ("causal_lm", ModelShape((), 37, 2), _QWEN3),
    "sd35_vae_tiny": ("vae_decoder", _LATENT, _PICTURES),
    "cogvideox_vae_tiny": ("vae_decoder", _CHUNKS, _PICTURES),
    "wan_vae_tiny": ("vae_decoder", _FRAMES, ()),  # its norm has no epsilon that counts
}
_CHANGES = {
    # Blocks that take more channels than they give; diffusers' own default of the ratio is no whole number's type.
    "cogvideox_vae_tiny": {"block_out_channels": (8, 8, 8, 16), "temporal_compression_ratio": 4.0},
    "wan_vae_tiny": {"dim_mult": [1, 2, 3, 4]},
}


def add(cases: Registry) -> None:
    """Add the cases, those of a model together."""
    for name, (kind, shape, parts) in _MODELS.items():
        model = f"{name}_quiet"
        of_heads = kind in ("text_encoder", "causal_lm")
        whole = {"float64_noise": False, "max_shard_size": "10GB", "rounded": of_heads}
        register(model, MODELS[name].but(**_CHANGES.get(name, {}), **whole, gains=quiet(*parts)))
        layouts = _HEADS if of_heads else _LAYOUTS
        for layout in layouts:
            for dtype in ("fp32", "bf16"):
                cases.make(kind, model, layout, shape, dtype=dtype)
        if name in ("sd35_tiny", "flux1_tiny"):  # the norms before their output, whose epsilon no config.json tells
            wide = f"{name}64_quiet"
            more = (f"single_transformer_blocks.{i}.proj_out" for i in range(1, 8))
            register(wide, MODELS[f"{name}64"].but(gains=quiet(*parts, *more), float64_noise=False))
            cases.make("ttnn_transformer", wide, layouts[0], replace(shape, batch=1), dtype="bf16")
        for every in ("refusals", "keys"):
            cases.make(every, model, layouts[0], shape, tag=every)
