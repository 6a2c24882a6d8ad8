"""FLUX.2: a tiny transformer through every scheme, and in TTNN blocks at the real widths."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import BlockShape, Layout, ModelShape, Registry
from parity.cases.checkpoints import SHARP, RandomModel, published, quiet, register
from parity.cases.layouts import USP24, add_transformer, layouts
from parity.cases.pipelines import PipelineSpec, register_pipeline
from refsim.pipelines.request import PipelineRequest

_TINY = published("flux2-dev", num_attention_heads=3, joint_attention_dim=48, num_layers=2, num_single_layers=2).but(
    **{"in_channels": 64, "attention_head_dim": 16, "axes_dims_rope": (4, 2, 6, 4), "timestep_guidance_channels": 64},
    mlp_ratio=2.5,
)
_SIZE = {"latent": (14, 22), "text": 29}
"""77 tokens of the image and 29 of the prompt, which divide by nothing; nor do 3, 5 and 7 heads, or 120 features of a
feed-forward, of which gate and up are padded one by one."""
_TINY64 = _TINY.but(attention_head_dim=64, axes_dims_rope=(16, 8, 24, 16), gains=SHARP)
_QUIET = quiet(
    *("x_embedder", "context_embedder", "to_q", "to_k", "add_q_proj", "add_k_proj", "to_out", "to_add_out"),
    *("linear_out", "to_qkv_mlp_proj"),
)
_BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3}
_VAE = published("flux2-vae", **_BLOCKS, block_out_channels=(16, 24, 32), decoder_block_out_channels=(24, 16, 32)).but(
    latent_channels=16, norm_num_groups=8, layers_per_block=1
)
_LAYER = {"num_attention_heads": 2, "intermediate_size": 24}
_MISTRAL = RandomModel(
    {
        "text_config": _LAYER
        | {"model_type": "mistral", "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 30}
        | {"num_key_value_heads": 1, "head_dim": 8},
        "vision_config": _LAYER
        | {"model_type": "pixtral", "hidden_size": 16, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14},
        "image_token_index": 31,
    },
    class_name="Mistral3ForConditionalGeneration",
)
"""Thirty layers, for the hidden states that a prompt is made of."""
_PIPELINE = PipelineSpec(
    "Flux2Pipeline",
    {"text_encoder": "mistral3_tiny", "vae": "flux2_vae_tiny", "transformer": "flux2_tiny"},
    {"tokenizer": 512},
    ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0, "use_dynamic_shifting": True}),
    PipelineRequest("a cat runs over green hills", steps=3, guidance=3.5, seed=7, height=48, width=64, max_text=24),
    # The prompt, then what the system says: of both something is left of 24 tokens.
    chat_template="{% for message in messages[::-1] %}{{ message['content'][0]['text'] }} {% endfor %}",
)
_PICTURE = ModelShape((10, 13), 0, 1)

_MODELS = {
    "flux2_tiny": _TINY.but(max_shard_size="200KB"),
    # Klein's kind: no guidance; five heads, an MLP of another ratio.
    "flux2_klein_tiny": _TINY.but(guidance_embeds=False, num_attention_heads=5, mlp_ratio=3.0, num_single_layers=3),
    # One kind of block only; what goes out is not what comes in; another epsilon.
    "flux2_double_tiny": _TINY.but(num_single_layers=0, out_channels=5, patch_size=2, eps=1e-5),
    "flux2_single_tiny": _TINY.but(num_layers=0, num_attention_heads=7, rope_theta=10000),
    "flux2_tiny_quiet": _TINY.but(gains=_QUIET),
    # Whole tiles per head, as TTNN wants it: 192 features, padded to 256 over four devices.
    "flux2_tiny64": _TINY64,
    "flux2_klein_tiny64": _TINY64.but(guidance_embeds=False, num_attention_heads=5, eps=1e-5, gains=_QUIET),
    "flux2_tiny64_single_block": _TINY64.but(block=3),
    "flux2_tiny64_double_block": _TINY64.but(block=1),
    # A decoder of other widths than the encoder; whole tiles of channels, as ttnn.group_norm wants them.
    "flux2_vae_tiny": _VAE,
    "mistral3_tiny": _MISTRAL,
    "flux2_vae_tiny64": _VAE.but(decoder_block_out_channels=(64, 64, 32), norm_num_groups=8),
}


def add(cases: Registry) -> None:
    """Add the cases of the transformer and of its blocks."""
    for name, model in _MODELS.items():
        register(name, model)
    register_pipeline("flux2_pipeline_tiny", _PIPELINE)
    for layout, suite in zip(layouts("bh_qb-sp2_tp2 t3k-sp2_tp4-split"), ("smoke", "full"), strict=True):
        cases.make("pipeline", "flux2_pipeline_tiny", layout, ModelShape((), 24, 1), suite=suite)
    for layout in layouts("t3k-sp2_tp4 t3k-sp2_tp4-split t3k-sp8-usp_r2u4 t3k-sp8-usp_r4u2"):
        add_transformer(cases, "flux2_tiny", layout, **_SIZE)
    for layout in layouts("tg-sp8_tp4 galaxy-cfg2_sp4_tp4"):
        add_transformer(cases, "flux2_tiny", layout, suite="full", **_SIZE)
    add_transformer(cases, "flux2_klein_tiny", Layout("t3k", "sp4_tp2", "ulysses", prompt_layout="split"), **_SIZE)
    add_transformer(cases, "flux2_double_tiny", Layout("n300", "tp2"), **_SIZE)
    add_transformer(cases, "flux2_single_tiny", Layout("bh-qb", "sp2_tp2"), **_SIZE)
    add_transformer(cases, "flux2_tiny_quiet", Layout("n300", "sp2"), **_SIZE)
    add_transformer(cases, "flux2_tiny", Layout("t3k", "sp2_tp4"), dtype="bf16", **_SIZE)
    for block in ("flux2_tiny64_double_block", "flux2_tiny64_single_block"):
        cases.make("block", block, Layout("bh-qb", "sp2_tp2"), BlockShape(60, 45))
    parts = _PIPELINE.parts | {"vae": "flux2_vae_tiny64", "transformer": "flux2_tiny64"}
    register_pipeline("flux2_pipeline_tiny64", replace(_PIPELINE, parts=parts))
    on = Layout("bh-qb", "sp2_tp2")
    cases.make("ttnn_pipeline", "flux2_pipeline_tiny64", on, ModelShape((), 24, 1), dtype="bf16")
    _decoder(cases)
    _ttnn(cases)


def _decoder(cases: Registry) -> None:
    """Add the decoder, cut in space and by channels, in both backends; 13 columns over tp 4 are 4 + 4 + 4 + 1 of 4."""
    for layout in (Layout("t3k", "sp2_tp4"), Layout("n300", "tp2", vae_parallel="tensor")):
        cases.make("vae_decoder", "flux2_vae_tiny", layout, _PICTURE)
        cases.make("ttnn_vae_decoder", "flux2_vae_tiny64", layout, _PICTURE, dtype="bf16")
    cases.make("vae_decoder", "flux2_vae_tiny", Layout("n300", "sp2"), _PICTURE, dtype="bf16")


def _ttnn(cases: Registry) -> None:
    """Add cases where the TTNN program runs, judged against refsim in bf16."""
    kind = {"kind": "ttnn_transformer", "dtype": "bf16", "batch": 1}
    for where in (("t3k", "sp2_tp4"), ("galaxy", "sp4_tp8"), ("bh-qb", "sp2_tp2")):
        add_transformer(cases, "flux2_tiny64", Layout(*where), **_SIZE, **kind)
    for layout in (USP24, Layout("tg", "sp8_tp4")):
        add_transformer(cases, "flux2_tiny64", layout, suite="full", **_SIZE, **kind)
    add_transformer(cases, "flux2_tiny64", Layout("t3k", "cfg2_sp2_tp2"), **_SIZE, **kind | {"batch": 2})
    add_transformer(cases, "flux2_klein_tiny64", Layout("n300", "tp2"), **_SIZE, **kind)
    split = Layout("bh-qb", "sp2_tp2", prompt_layout="split")  # 141 tokens reach the second device
    add_transformer(cases, "flux2_tiny64", split, **_SIZE | {"text": 141}, **kind)
    for block in ("flux2_tiny64_double_block", "flux2_tiny64_single_block"):
        for where in (("t3k", "sp2_tp4"), ("bh-qb", "sp2_tp2")):
            cases.make("ttnn_block", block, Layout(*where), BlockShape(), dtype="bf16")
