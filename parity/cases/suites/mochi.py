"""Mochi 1: the tiny transformer through every scheme, its decoder, and both in TTNN."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import BlockShape, Layout, ModelShape, Registry
from parity.cases.checkpoints import MODELS, RandomModel, published, register
from parity.cases.layouts import RING8, ULYSSES8, USP24, USP42, add_transformer, layouts
from parity.cases.pipelines import PipelineSpec, register_pipeline
from refsim.pipelines.request import PipelineRequest

# Three stages whose widths, times and sides all differ.
_VAE = RandomModel(
    {"decoder_block_out_channels": (32, 64, 32), "encoder_block_out_channels": (32, 32, 32), "latent_channels": 12}
    | {"layers_per_block": (1, 2, 1, 1), "temporal_expansions": (3, 2), "spatial_expansions": (1, 2)}
    | {"add_attention_block": (False, True, True, True)},
    class_name="AutoencoderKLMochi",
)
# Three heads divide by nothing, nor do 48 and 40 features of the streams.
_TINY = published("mochi-1", num_layers=3, num_attention_heads=3, attention_head_dim=16, pooled_projection_dim=40).but(
    text_embed_dim=24, time_embed_dim=32
)
# Whole tiles per head, as TTNN wants them: 192 features of the video's stream, 96 of the prompt's. Scores are twice
# as large, and pairs turn by 0.8 a place, so that a place or a token too far counts in bf16.
_TINY64 = _TINY.but(num_layers=2, attention_head_dim=64, pooled_projection_dim=96, text_embed_dim=256).but(
    gains=(("pos_frequencies", 8.0), ("attn1.norm", 1.4))
)
_MODELS = {
    "mochi_tiny": _TINY.but(max_shard_size="200KB"),
    "mochi_tiny64": _TINY64,
    "mochi_tiny64_block": _TINY64.but(block=0),
    "mochi_vae_tiny": _VAE,
    "mochi_vae_short": _VAE.but(
        decoder_block_out_channels=(32,) * 4,
        encoder_block_out_channels=(32,) * 4,
        layers_per_block=(1,) * 5,
        temporal_expansions=(1, 2, 3),
        spatial_expansions=(2, 2, 2),
        add_attention_block=(False, True, True, True, True),
    ),
    "mochi_32_tiny": _TINY.but(text_embed_dim=32, num_layers=2),
    "mochi_guided64": _TINY64.but(gains=()),  # errors grow by guidance and steps
    "t5_256_tiny64": MODELS["t5_tiny64"].but(d_model=256, num_layers=1),
}

_ASKED = {"steps": 3, "guidance": 4.5, "seed": 7, "height": 32, "width": 48, "frames": 7, "max_text": 13}
_PIPELINE = PipelineSpec(
    "MochiPipeline",
    {"text_encoder": "t5_32_tiny", "vae": "mochi_vae_short", "transformer": "mochi_32_tiny"},
    {"tokenizer": 256},
    ("FlowMatchEulerDiscreteScheduler", {"invert_sigmas": True}),
    PipelineRequest(
        "a cat runs over green hills",
        "slow dog",
        steps=3,
        guidance=4.5,
        seed=7,
        height=32,
        width=48,
        max_text=13,
        frames=7,
    ),
)


def add(cases: Registry) -> None:
    """Add the cases of the transformer and of the decoder, on CPU ranks and in TTNN."""
    for name, model in _MODELS.items():
        register(name, model)
    register_pipeline("mochi_pipeline_tiny", _PIPELINE)
    parts = {"text_encoder": "t5_256_tiny64", "transformer": "mochi_guided64"}
    register_pipeline("mochi_pipeline_tiny64", replace(_PIPELINE, parts=_PIPELINE.parts | parts))
    for where, suite in (("bh-qb", "sp2_tp2"), "smoke"), (("t3k", "cfg2_sp2_tp2"), "full"):
        at = (Layout(*where), ModelShape((), 13, 2))
        cases.make("pipeline", "mochi_pipeline_tiny", *at, suite=suite)
        cases.make("ttnn_pipeline", "mochi_pipeline_tiny64", *at, dtype="bf16", suite=suite)
    _reference(cases)
    _ttnn(cases)
    for where, suite in ((("n300", "sp2"), "smoke"), (("t3k", "sp2_tp4"), "full"), (("galaxy", "sp8_tp4"), "full")):
        cases.make("vae_decoder", "mochi_vae_tiny", Layout(*where), ModelShape((3, 10, 13), 0, 2), suite=suite)
    for where, latent, suite in (
        (("n300", "sp2"), (2, 4, 6), "smoke"),
        (("bh-qb", "sp2_tp2"), (4, 5, 4), "smoke"),
        (("t3k", "sp2_tp4"), (3, 3, 7), "full"),
        (("galaxy", "sp8_tp4"), (2, 10, 7), "full"),
    ):
        cases.make(
            "ttnn_vae_decoder", "mochi_vae_tiny", Layout(*where), ModelShape(latent, 0, 1), dtype="bf16", suite=suite
        )


_SIZE = {"latent": (3, 10, 14), "text": 29}
"""105 tokens of the video and 29 of the prompt, of which 20 are valid, or every one but every fourth."""


def _reference(cases: Registry) -> None:
    for layout in layouts("t3k-sp2_tp4 t3k-sp2_tp4-split t3k-sp8-usp_r2u4 bh_qb-sp2_tp2"):
        add_transformer(cases, "mochi_tiny", layout, **_SIZE)
    add_transformer(cases, "mochi_tiny", Layout("t3k", "sp2_tp4"), dtype="bf16", **_SIZE)
    split = Layout("n300", "sp2", prompt_layout="split")
    for layout in (Layout("bh-qb", "sp2_tp2"), split):
        cases.make("block", "mochi_tiny64_block", layout, BlockShape(60, 45))
    full = {"suite": "full", **_SIZE}
    for layout in (RING8, ULYSSES8, USP42, replace(USP24, prompt_layout="split"), *layouts("t3k_1x8-tp8 tg-sp8_tp4")):
        add_transformer(cases, "mochi_tiny", layout, **full)
    guided = {"guidance": 4.5, "other_layout": Layout("t3k", "sp2_tp4"), **full}
    for where in (("t3k", "cfg2_sp2_tp2"), ("galaxy", "cfg2_sp4_tp4")):
        add_transformer(cases, "mochi_tiny", Layout(*where), **guided)


def _ttnn(cases: Registry) -> None:
    """Add cases where the TTNN program runs, judged against refsim in bf16."""
    kind = {"kind": "ttnn_transformer", "dtype": "bf16", **_SIZE}
    add_transformer(cases, "mochi_tiny64", Layout("t3k", "sp2_tp4", "ulysses"), batch=1, **kind)
    split = Layout("bh-qb", "sp2_tp2", prompt_layout="split")  # 94 of 141 tokens are valid, which reach two devices
    add_transformer(cases, "mochi_tiny64", split, batch=1, **kind | {"text": 141})
    # Two samples of other valid tokens; 75 tokens of the video are 96 rows, and would be 128 over both devices.
    add_transformer(cases, "mochi_tiny64", Layout("n300", "tp2"), **kind | {"latent": (3, 10, 10)})
    full = {"suite": "full", **kind}
    for layout in (USP24, RING8, ULYSSES8, *layouts("t3k-sp2_tp4 galaxy-sp8_tp4 tg-sp4_tp8")):
        add_transformer(cases, "mochi_tiny64", layout, batch=1, **full)
    add_transformer(cases, "mochi_tiny64", Layout("t3k", "cfg2_sp2_tp2"), guidance=4.5, **full)
    for layout in layouts("t3k-sp2_tp4 bh_qb-sp2_tp2-split"):
        cases.make("ttnn_block", "mochi_tiny64_block", layout, BlockShape(90, 72), dtype="bf16")
