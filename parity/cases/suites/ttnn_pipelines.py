"""Whole pipelines in TTNN, prompt to pictures, judged against refsim's ranks in bf16, step by step.

Their parts have whole tiles per head, as TTNN wants them, sizes that divide by nothing, and as few layers as show how
they work together; each part is judged by itself elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.cases import Layout, ModelShape, Registry
from parity.cases.checkpoints import MODELS, published, register
from parity.cases.pipelines import PIPELINES, PipelineSpec, register_pipeline

_HEADS = {"num_attention_heads": 3, "attention_head_dim": 64, "num_layers": 1}
_COGVIDEOX = _HEADS | {"time_embed_dim": 40, "text_embed_dim": 96, "max_text_seq_length": 13}
_COGVIDEOX |= {"sample_width": 12, "sample_height": 8, "sample_frames": 9}
_CLIPS = ("clip_l_tiny64", "clip_g_tiny64", "clip_plain_tiny64")


_FLUX1 = _HEADS | {"num_single_layers": 1, "axes_dims_rope": (16, 24, 24), "joint_attention_dim": 96}
_MODELS = {
    **{f"{name}_short": MODELS[name].but(num_hidden_layers=2) for name in _CLIPS},
    **{f"{name}_short": MODELS[name].but(num_layers=1) for name in ("t5_tiny64", "umt5_tiny64")},
    "sd35_vae_tiny_short": MODELS["sd35_vae_tiny"].but(layers_per_block=1),
    # Both CLIPs side by side are 384 wide, T5 wider.
    "t5_416_tiny64": MODELS["t5_tiny64"].but(d_model=416, num_layers=1),
    "sd35_416_tiny64": MODELS["sd35_tiny64"].but(joint_attention_dim=416, num_layers=2),
    "flux1_96_tiny64": published("flux1-dev", **_FLUX1, pooled_projection_dim=192),
    "wan22_96_tiny64": published("wan22-t2v-a14b", **_HEADS, ffn_dim=112, text_dim=96, freq_dim=32),
    "cogvideox_2b_96_tiny64": published("cogvideox-2b", **_COGVIDEOX),
    "cogvideox_5b_96_tiny64": published("cogvideox-5b", **_COGVIDEOX),
}


def _like(name: str, parts: dict[str, str], **asked: Any) -> PipelineSpec:
    """Return a pipeline of ``parity.cases.pipelines`` with other parts, and asked for other things."""
    like = PIPELINES[name]
    return replace(like, parts=like.parts | parts, request=replace(like.request, **asked))


def _pipelines() -> dict[str, PipelineSpec]:
    """Make every pipeline, guidance 3.

    CogVideoX at its 6: refsim's own picture in bf16 is 1e-3 from its picture in fp32. SD3 at its 4.5: on some
    processors two right bf16 programs differ by more than the bound (5.2e-4 on n300).
    """
    clip_l, clip_g, clip_plain = (f"{name}_short" for name in _CLIPS)
    vae = {"vae": "sd35_vae_tiny_short"}
    sd3 = {"text_encoder": clip_l, "text_encoder_2": clip_g, "text_encoder_3": "t5_416_tiny64"}
    sd3 |= vae | {"transformer": "sd35_416_tiny64"}
    flux = {"text_encoder": clip_plain, "text_encoder_2": "t5_tiny64_short", "transformer": "flux1_96_tiny64"}
    wan = {"text_encoder": "umt5_tiny64_short", "transformer": "wan22_96_tiny64", "transformer_2": "wan22_96_tiny64"}
    return {
        "sd3_pipeline_tiny64": _like("sd3_pipeline_tiny", sd3, guidance=3.0),
        "flux1_pipeline_tiny64": _like("flux1_pipeline_tiny", flux | vae),
        "wan_pipeline_tiny64": _like("wan_pipeline_tiny", wan),
        **{f"cogvideox_{size}_pipeline_tiny64": _cogvideox(size) for size in ("2b", "5b")},
    }


def _cogvideox(size: str) -> PipelineSpec:
    parts = {"text_encoder": "t5_tiny64_short", "transformer": f"cogvideox_{size}_96_tiny64"}
    return _like(f"cogvideox_{size}_pipeline_tiny", parts, steps=3, guidance=3.0)  # the DPM adds little noise in two


_MESHES = (Layout("t3k", "cfg2_sp2_tp2"), Layout("t3k", "sp2_tp4"), Layout("bh-qb", "sp2_tp2"))

_SMOKE = {
    "sd3_pipeline_tiny64": "t3k",
    "flux1_pipeline_tiny64": "bh-qb",
    "wan_pipeline_tiny64": "t3k",
    "cogvideox_5b_pipeline_tiny64": "bh-qb",
}
"""The mesh on which each runs in the smoke suite."""


def add(cases: Registry) -> None:
    """Add the cases of every pipeline; the smoke suite has one of each system."""
    for name, model in _MODELS.items():
        register(name, model)
    for name, pipeline in _pipelines().items():
        register_pipeline(name, pipeline)
        smoke = _SMOKE.get(name)
        for layout in _MESHES:
            if pipeline.class_name == "FluxPipeline" and layout.config().cfg > 1:
                continue  # it has no negative prompt
            suite = "smoke" if layout is next((x for x in _MESHES if x.mesh == smoke), None) else "full"
            shape = ModelShape((), pipeline.request.max_text, 2)
            cases.make("ttnn_pipeline", name, layout, shape, dtype="bf16", suite=suite)
