"""Flux.1: a tiny transformer through every scheme, its pipeline, and in TTNN blocks at the real widths."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import BlockShape, Layout, ModelShape, Registry
from parity.cases.checkpoints import MODELS, published, register
from parity.cases.layouts import RING8, ULYSSES8, USP24, add_transformer, layouts
from parity.cases.pipelines import PipelineSpec, register_pipeline
from refsim.pipelines.request import PipelineRequest

_TINY = published("flux1-dev", num_attention_heads=3, joint_attention_dim=64, num_layers=2, num_single_layers=2).but(
    attention_head_dim=16, axes_dims_rope=(4, 6, 6), pooled_projection_dim=30
)
_SIZE = {"latent": (14, 22), "text": 29}
"""77 tokens of the image and 29 of the prompt, which divide by nothing; nor do three heads."""

_MODELS = {
    "flux1_tiny": _TINY.but(max_shard_size="200KB"),
    "flux1_schnell_tiny": _TINY.but(guidance_embeds=False),
    "flux1_tiny_patches": _TINY.but(patch_size=2),  # four times as much out as in
    # The same with whole tiles per head, as TTNN wants it: 192 features, padded to 256 over four devices.
    "flux1_tiny64": _TINY.but(attention_head_dim=64, axes_dims_rope=(16, 24, 24)),
    "flux1_schnell_tiny64": _TINY.but(attention_head_dim=64, axes_dims_rope=(16, 24, 24), guidance_embeds=False),
    "clip_plain_tiny": MODELS["clip_l_tiny"].but(class_name="CLIPTextModel"),
    # Real widths, a block of each kind.
    "flux1_double_block": published("flux1-dev", num_layers=1, num_single_layers=1, block=0),
    "flux1_single_block": published("flux1-dev", num_layers=1, num_single_layers=1, block=1),
}

_PARTS = {"text_encoder": "clip_plain_tiny", "text_encoder_2": "t5_64_tiny"}
_PARTS |= {"vae": "sd35_vae_tiny", "transformer": "flux1_tiny"}
_PIPELINE = PipelineSpec(
    "FluxPipeline",
    _PARTS,
    {"tokenizer": 77, "tokenizer_2": 512},
    ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0, "use_dynamic_shifting": True}),
    PipelineRequest("a cat runs over green hills", steps=3, guidance=3.5, seed=7, height=48, width=64, max_text=24),
)


def add(cases: Registry) -> None:
    """Add the cases of the transformer, of its blocks and of the pipeline."""
    for name, model in _MODELS.items():
        register(name, model)
    register_pipeline("flux1_pipeline_tiny", _PIPELINE)
    _reference(cases)
    for layout in layouts("t3k-sp2_tp4-split t3k-sp8-usp_r2u4 bh_qb-sp2_tp2"):
        cases.make("pipeline", "flux1_pipeline_tiny", layout, ModelShape((), 24, 1), suite="full")
    _ttnn(cases)


def _reference(cases: Registry) -> None:
    for layout in layouts("t3k-sp2_tp4 t3k-sp2_tp4-split t3k-sp8-usp_r2u4 t3k_1x8-tp8 tg-sp4_tp8-split bh_qb-sp2_tp2"):
        add_transformer(cases, "flux1_tiny", layout, **_SIZE)
    add_transformer(cases, "flux1_schnell_tiny", Layout("bh-qb-1x4", "sp4"), **_SIZE)
    add_transformer(cases, "flux1_tiny_patches", Layout("n300", "sp2"), **_SIZE)
    for layout in (Layout("t3k", "sp2_tp4"), Layout("bh-qb", "sp2_tp2")):
        add_transformer(cases, "flux1_tiny", layout, dtype="bf16", **_SIZE)
    for layout in (RING8, ULYSSES8, replace(USP24, prompt_layout="split"), *_GALAXY):
        add_transformer(cases, "flux1_tiny", layout, suite="full", **_SIZE)
    twice = {"other_layout": Layout("t3k", "sp2_tp4"), "suite": "full"}  # two samples on two groups, or as one batch
    add_transformer(cases, "flux1_tiny", Layout("t3k", "cfg2_sp2_tp2"), **twice, **_SIZE)


_GALAXY = Layout("tg", "sp8_tp4"), Layout("galaxy", "sp8_tp4")
_TTNN_LAYOUTS = (("t3k", "sp2_tp4"), ("galaxy", "sp4_tp8"), ("bh-qb", "sp2_tp2"))


def _ttnn(cases: Registry) -> None:
    """Add cases where the TTNN program runs, judged against refsim in bf16."""
    kind = {"kind": "ttnn_transformer", "dtype": "bf16"}
    add_transformer(cases, "flux1_schnell_tiny64", Layout("n300", "tp2"), batch=1, **_SIZE, **kind)
    for layout in (USP24, Layout("tg", "sp8_tp4"), *(Layout(*where) for where in _TTNN_LAYOUTS)):
        add_transformer(cases, "flux1_tiny64", layout, batch=1, **_SIZE, **kind)
    add_transformer(cases, "flux1_tiny64", Layout("t3k", "cfg2_sp2_tp2"), **_SIZE, **kind)
    uneven = Layout("t3k", "sp4_tp2", "ulysses")  # three heads are padded to eight, one tp member has none of them
    add_transformer(cases, "flux1_tiny64", uneven, **_SIZE | {"batch": 1}, suite="full", **kind)
    for layout in (USP24, Layout("bh-qb", "sp2_tp2")):
        split = replace(layout, prompt_layout="split")  # 141 tokens reach the second device of every ring
        add_transformer(cases, "flux1_tiny64", split, **_SIZE | {"text": 141, "batch": 1}, suite="full", **kind)
    for model in ("flux1_double_block", "flux1_single_block"):
        for where in _TTNN_LAYOUTS:
            cases.make("ttnn_block", model, Layout(*where), BlockShape(), dtype="bf16", needs_gb=4)
