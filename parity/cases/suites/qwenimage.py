"""Qwen-Image: a tiny transformer through every scheme, a mask with holes; Edit-2511 with further pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.cases import BlockShape, Layout, ModelShape, Registry
from parity.cases.checkpoints import SHARP, RandomModel, published, register
from parity.cases.layouts import RING8, ULYSSES8, USP24, USP42, add_transformer, layouts
from parity.cases.pipelines import PipelineSpec, register_pipeline
from refsim.pipelines.request import PipelineRequest

_TINY = published("qwen-image", num_attention_heads=3, attention_head_dim=16, num_layers=3, joint_attention_dim=64).but(
    axes_dims_rope=(4, 6, 6), zero_cond_t=False
)
_WIDE = _TINY.but(attention_head_dim=64, axes_dims_rope=(16, 24, 24), num_layers=2, gains=SHARP)
_SIZE = {"latent": (14, 22), "text": 29}
"""77 tokens of the picture and 29 of the prompt, which divide by nothing; nor do three heads."""

_NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
_QWEN_TEXT: dict[str, Any] = {"vocab_size": 64, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
_QWEN_TEXT |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048}
_QWEN_TEXT |= {"rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [2, 2, 2]}}
_QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "out_hidden_size": 24,
}
_QWEN_VISION |= {"fullatt_block_indexes": [0]}

_QWEN25VL = RandomModel(
    {"text_config": _QWEN_TEXT | _NO_TOKENS, "vision_config": _QWEN_VISION, **_NO_TOKENS},
    class_name="Qwen2_5_VLForConditionalGeneration",
)
_AS_WIDE = {"hidden_size": 64, "rope_scaling": _QWEN_TEXT["rope_scaling"] | {"mrope_section": [4, 6, 6]}}

_MODELS = {
    "qwenimage_tiny": _TINY.but(max_shard_size="200KB"),
    "qwenimage_edit_tiny": _TINY.but(zero_cond_t=True),
    "qwenimage_five_tiny": _TINY.but(num_attention_heads=5, num_layers=1),
    "qwenimage_seven_tiny": _TINY.but(num_attention_heads=7, num_layers=1, zero_cond_t=True),
    "qwenimage_tiny_block": _TINY.but(block=1),
    # Whole tiles per head, as TTNN wants it: 192 features, padded to 256 over four devices.
    "qwenimage_tiny64": _WIDE,
    "qwenimage_edit_tiny64": _WIDE.but(zero_cond_t=True),
    "qwenimage_tiny64_block": _WIDE.but(block=1),
    # The parts of a pipeline; a picture's encoder is never asked.
    "qwenimage_vae_rgb_tiny": RandomModel(
        {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 1}, class_name="AutoencoderKLQwenImage"
    ),
    "qwenimage_wide_tiny": _TINY.but(joint_attention_dim=24, num_layers=2),
    "qwenimage_guided64": _WIDE.but(gains=()),  # errors grow by guidance and steps
    "qwen25vl_tiny": _QWEN25VL,
    "qwen25vl_64_tiny": _QWEN25VL.but(text_config=_QWEN_TEXT | _AS_WIDE | _NO_TOKENS),
    # Real widths.
    "qwenimage_block": published("qwen-image", num_layers=1, block=0),
    "qwenimage_vae_tiny": RandomModel(
        {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 2, 3, 4], "num_res_blocks": 1, "input_channels": 4},
        class_name="AutoencoderKLQwenImage",
    ),
}

_PIPELINE = PipelineSpec(
    "QwenImagePipeline",
    {"text_encoder": "qwen25vl_tiny", "vae": "qwenimage_vae_rgb_tiny", "transformer": "qwenimage_wide_tiny"},
    {"tokenizer": 1024},
    ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True}),
    PipelineRequest(
        "a cat runs over green hills", "slow dog", steps=3, guidance=4.0, seed=7, height=48, width=64, max_text=40
    ),
)


def add(cases: Registry) -> None:
    """Add the cases of the transformer and of a block."""
    for name, model in _MODELS.items():
        register(name, model)
    register_pipeline("qwenimage_pipeline_tiny", _PIPELINE)
    parts = {"text_encoder": "qwen25vl_64_tiny", "transformer": "qwenimage_guided64"}
    register_pipeline("qwenimage_pipeline_tiny64", replace(_PIPELINE, parts=_PIPELINE.parts | parts))
    for layout in layouts("t3k-sp2_tp4 t3k-sp8-usp_r2u4-split bh_qb-sp2_tp2"):
        add_transformer(cases, "qwenimage_tiny", layout, **_SIZE)
    for layout in layouts("t3k-sp2_tp4-split t3k-sp8-usp_r4u2"):
        add_transformer(cases, "qwenimage_edit_tiny", layout, **_SIZE)
    add_transformer(cases, "qwenimage_five_tiny", Layout("bh-qb-1x4", "sp4", "ulysses"), **_SIZE)
    add_transformer(cases, "qwenimage_seven_tiny", Layout("n300", "tp2"), **_SIZE)
    add_transformer(cases, "qwenimage_edit_tiny", Layout("t3k", "cfg2_sp2_tp2"), guidance=4.0, **_SIZE)
    for model in ("qwenimage_tiny", "qwenimage_edit_tiny"):
        add_transformer(cases, model, Layout("bh-qb", "sp2_tp2"), dtype="bf16", **_SIZE)
    cases.make("block", "qwenimage_tiny_block", Layout("n300", "sp2"), BlockShape(60, 45))
    cases.make("pipeline", "qwenimage_pipeline_tiny", Layout("t3k", "cfg2_sp2_tp2"), ModelShape((), 40, 2))
    for layout in layouts("n300-sp2 t3k-cfg2_sp2_tp2"):
        suite = "smoke" if layout.mesh == "n300" else "full"
        shape = ModelShape((), 40, 2)
        cases.make("ttnn_pipeline", "qwenimage_pipeline_tiny64", layout, shape, dtype="bf16", suite=suite)
    picture = ModelShape((1, 5, 7), 0, 1)
    cases.make("vae_decoder", "qwenimage_vae_tiny", Layout("bh-qb", "sp2_tp2"), picture)
    cases.make("ttnn_vae_decoder", "qwenimage_vae_tiny", Layout("bh-qb", "sp2_tp2"), picture, dtype="bf16")
    _ttnn(cases)
    _full(cases)


_TTNN_LAYOUTS = layouts("t3k-sp2_tp4 galaxy-cfg2_sp4_tp4 bh_qb-sp2_tp2")


def _ttnn(cases: Registry) -> None:
    """Add cases where the TTNN program runs, judged against refsim in bf16."""
    kind = {"kind": "ttnn_transformer", "dtype": "bf16"}
    for layout in _TTNN_LAYOUTS:
        batch = {"batch": 2 if "cfg" in layout.parallel else 1}
        add_transformer(cases, "qwenimage_tiny64", layout, **_SIZE, **batch, **kind)
        add_transformer(cases, "qwenimage_edit_tiny64", layout, **_SIZE, **batch, **kind)
    for layout in (USP24, Layout("t3k", "sp4_tp2", "ulysses")):
        add_transformer(cases, "qwenimage_edit_tiny64", layout, suite="full", batch=1, **_SIZE, **kind)
    tall = _SIZE | {"latent": (24, 14)}  # two prompts in turn, which begin behind an even number of rows
    add_transformer(cases, "qwenimage_tiny64", Layout("n300", "sp2"), **tall, **kind)
    split = Layout("bh-qb", "sp2_tp2", prompt_layout="split")
    add_transformer(cases, "qwenimage_tiny64", split, suite="full", batch=1, **_SIZE | {"text": 141}, **kind)
    cases.make("ttnn_block", "qwenimage_tiny64_block", Layout("n300", "sp2"), BlockShape(75, 45), dtype="bf16")
    for layout in layouts("t3k-sp2_tp4 galaxy-cfg2_sp4_tp4"):
        cases.make("ttnn_block", "qwenimage_block", layout, BlockShape(), dtype="bf16", needs_gb=4)


def _full(cases: Registry) -> None:
    """Add the schemes that the others cover in part, and those of 32 devices."""
    for layout in (RING8, ULYSSES8):
        for model in ("qwenimage_tiny", "qwenimage_edit_tiny"):
            add_transformer(cases, model, layout, suite="full", **_SIZE)
    add_transformer(cases, "qwenimage_tiny", USP42, suite="full", **_SIZE)
    add_transformer(cases, "qwenimage_edit_tiny", replace(USP24, prompt_layout="split"), suite="full", **_SIZE)
    for layout in layouts("tg-sp8_tp4 galaxy-cfg2_sp4_tp4"):
        guidance = 4.0 if "cfg" in layout.parallel else None
        for model in ("qwenimage_tiny", "qwenimage_edit_tiny"):
            add_transformer(cases, model, layout, guidance=guidance, suite="full", **_SIZE)
