"""CogVideoX's transformers: the 2b one with its table of positions, the 5b one and 1.5 with rotary positions."""

from __future__ import annotations

from dataclasses import replace

from parity.cases import BlockShape, Layout, Registry
from parity.cases.checkpoints import published, register
from parity.cases.layouts import USP24, USP42, add_transformer, layouts

# Three heads of whole tiles, as TTNN wants them: 192 features, padded to 256 over four devices.
_TINY = {"num_attention_heads": 3, "time_embed_dim": 40, "text_embed_dim": 72, "num_layers": 2}
_TINY |= {"sample_width": 12, "sample_height": 8, "sample_frames": 9, "max_text_seq_length": 45}
_DEEP = {"patch_size_t": 2, "patch_bias": False, "sample_frames": 17}
_IMAGE = {"in_channels": 32, "ofs_embed_dim": 40}
"""Of 1.5's image-to-video: the image beside the noise."""

_MODELS = {
    "cogvideox_2b_tiny64": published("cogvideox-2b", **_TINY),
    "cogvideox_5b_tiny64": published("cogvideox-5b", **_TINY),
    "cogvideox_15_tiny64": published("cogvideox-5b", **_TINY | _DEEP),
    "cogvideox_15_i2v_tiny64": published("cogvideox-5b", **_TINY | _DEEP | _IMAGE),
    "cogvideox_5b_tiny64_block": published("cogvideox-5b", **_TINY | {"num_layers": 1}, block=0),
    # The published width: 48 heads of 64.
    "cogvideox_5b_block": published("cogvideox-5b", num_layers=1, block=0),
}


def add(cases: Registry) -> None:
    """Add the cases of the transformers, on CPU ranks and in TTNN."""
    for name, model in _MODELS.items():
        register(name, model)
    _reference(cases)
    _ttnn(cases)


def _reference(cases: Registry) -> None:
    size = {"latent": (3, 8, 12), "text": 13, "suite": "full"}
    for model in ("cogvideox_2b_tiny", "cogvideox_5b_tiny"):
        for layout in layouts(
            "t3k-sp8-usp_r2u4 t3k_1x8-sp8 t3k_1x8-sp8-ulysses t3k_1x8-tp8 tg-sp8_tp4 t3k-sp8-usp_r2u4-split "
            "t3k_1x8-sp8-split"
        ):
            add_transformer(cases, model, layout, **size)
        guided = {"guidance": 6.0, "other_layout": Layout("t3k", "sp2_tp4"), **size}
        add_transformer(cases, model, Layout("t3k", "cfg2_sp2_tp2"), **guided)
        add_transformer(cases, model, Layout("t3k", "sp2_tp4"), dtype="bf16", **size)

    image = _DEEP_SIZE | {"latent": (4, 8, 12)}
    split = Layout("bh-qb", "sp2_tp2", prompt_layout="split")
    for layout, dtype, suite in ((split, "fp32", "smoke"), (USP24, "bf16", "full")):
        add_transformer(cases, "cogvideox_15_i2v_tiny64", layout, dtype=dtype, suite=suite, **image)


_SIZE = {"latent": (5, 10, 14), "text": 45, "batch": 1}
"""175 tokens of the video and 45 of the prompt, which divide by nothing; nor do three heads."""
_DEEP_SIZE = _SIZE | {"latent": (6, 10, 14)}


def _ttnn(cases: Registry) -> None:
    """Add cases where the TTNN program runs, judged against refsim in bf16."""
    kind = {"kind": "ttnn_transformer", "dtype": "bf16"}
    for layout in (USP24, Layout("bh-loudbox", "sp2_tp4")):
        add_transformer(cases, "cogvideox_5b_tiny64", layout, **_SIZE, **kind)
    add_transformer(cases, "cogvideox_2b_tiny64", Layout("bh-loudbox", "sp2_tp4"), **_SIZE, **kind)
    full = kind | {"suite": "full"}
    for layout in layouts(
        "n300-sp2 n300-tp2 t3k_1x8-sp8 t3k_1x8-sp8-ulysses t3k-sp8-usp_r4u2 t3k-sp4_tp2-ulysses galaxy-sp8_tp4 "
        "galaxy-sp32-usp_r8u4 bh_loudbox-sp8-usp_r2u4 t3k_1x8-sp8-ulysses-split t3k_1x8-sp8-split bh_qb-sp2_tp2-split"
    ):
        add_transformer(cases, "cogvideox_5b_tiny64", layout, **_SIZE, **full)
    for layout in (USP24, USP42):  # prompt tokens on more than one device of the ring, the last with 13 of 128 rows
        split_prompt = replace(layout, prompt_layout="split")
        add_transformer(cases, "cogvideox_5b_tiny64", split_prompt, **_SIZE | {"text": 141}, **full)
    for layout in (USP24, Layout("galaxy", "sp8_tp4")):
        add_transformer(cases, "cogvideox_2b_tiny64", layout, **_SIZE, **full)
    for layout in (USP24, Layout("t3k", "sp2_tp4")):
        add_transformer(cases, "cogvideox_15_tiny64", layout, **_DEEP_SIZE, **full)
    add_transformer(cases, "cogvideox_15_i2v_tiny64", Layout("bh-qb", "sp2_tp2"), **_DEEP_SIZE, **full)
    guided = full | {"guidance": 6.0} | _SIZE | {"batch": 2}
    for where in (("n300", "cfg2"), ("t3k", "cfg2_sp2_tp2")):
        add_transformer(cases, "cogvideox_5b_tiny64", Layout(*where), **guided)
    cut = Layout("t3k", "sp2_tp4", prompt_layout="split")  # 72 tokens of the prompt reach the second device
    cases.make("ttnn_block", "cogvideox_5b_tiny64_block", cut, BlockShape(175, 72), dtype="bf16")
    real = {"dtype": "bf16", "needs_gb": 4}
    for layout, suite in ((Layout("t3k", "sp2_tp4"), "smoke"), (Layout("bh-loudbox", "sp2_tp4"), "full")):
        cases.make("ttnn_block", "cogvideox_5b_block", layout, BlockShape(315, 45), suite=suite, **real)
    for layout in (USP24, replace(USP24, prompt_layout="split")):
        cases.make("ttnn_block", "cogvideox_5b_block", layout, BlockShape(315, 226), suite="full", **real)
