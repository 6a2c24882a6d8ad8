"""Whole pipelines, prompt to pictures: encoders, transformer, scheduler and decoder together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parity.cases import Layout, ModelShape, Registry
from parity.cases.layouts import USP24
from parity.cases.pipelines import PIPELINES, register_pipeline

_SHAPE = ModelShape((), 13, 2)


def add(cases: Registry) -> None:
    """Add the cases of every pipeline."""
    _small(cases)
    usp = replace(USP24, prompt_layout="split")
    for model, layouts in {
        "sd3_pipeline_tiny": (Layout("t3k", "cfg2_sp2_tp2"), Layout("t3k", "sp2_tp4"), Layout("tg", "cfg2_sp4_tp4")),
        "wan_pipeline_tiny": (Layout("t3k", "sp2_tp4"), Layout("t3k", "cfg2_sp2_tp2"), Layout("galaxy", "sp8_tp4")),
        "cogvideox_2b_pipeline_tiny": (USP24, usp),
        "cogvideox_5b_pipeline_tiny": (USP24, usp, Layout("t3k", "cfg2_sp2_tp2")),
    }.items():
        for layout in layouts:
            cases.make("pipeline", model, layout, _SHAPE, suite="full")


_ALONE = "wan_alone_pipeline"
_NO_T5 = "sd3_no_t5_pipeline"
_LINE = Layout("n300", "sp2")
_SQUARE = Layout("bh-qb", "sp2_tp2")
_TWICE = Layout("n300", "cfg2")


def _small(cases: Registry) -> None:
    """Add every pipeline at a size that takes a second, each dtype and mesh; CogVideoX's with two schedulers."""
    picture = {"height": 40, "width": 56, "steps": 2}
    video = {"height": 32, "width": 48, "frames": 5}
    _like("sd3_pipeline", **picture)
    _like("flux1_pipeline", **picture)
    _like("wan_pipeline", **video)
    _like("cogvideox_2b_pipeline", height=None, width=None, frames=None)  # as its transformer's config.json has them
    _like("cogvideox_5b_pipeline", **video, guidance=3.0)  # at 6 diffusers' own picture is 2e-3 from fp32's
    _like("cogvideox_15_pipeline", **video | {"frames": 9}, guidance=3.0)  # 3 frames of latents; patches hold 4
    wan = PIPELINES["wan_pipeline_small"]  # one transformer for all steps: no boundary
    parts = {name: model for name, model in wan.parts.items() if name != "transformer_2"}
    request = replace(wan.request, guidance_2=None, frames=1, steps=2)
    register_pipeline(f"{_ALONE}_small", replace(wan, parts=parts, request=request, arguments={}))
    sd3 = PIPELINES["sd3_pipeline_small"]  # zeros stand for the rows of the encoder that is not there
    nothing = {"text_encoder_3": None, "tokenizer_3": None}
    parts, tokenizers = (
        {k: v for k, v in all_parts.items() if k not in nothing} for all_parts in (sd3.parts, sd3.tokenizers)
    )
    register_pipeline(f"{_NO_T5}_small", replace(sd3, parts=parts, tokenizers=tokenizers, arguments=nothing))
    for name, layout, dtype, suite in (
        ("sd3_pipeline", _LINE, "fp32", "smoke"),
        ("sd3_pipeline", _SQUARE, "bf16", "smoke"),
        (_NO_T5, _TWICE, "fp32", "smoke"),
        ("flux1_pipeline", _LINE, "fp32", "full"),
        ("flux1_pipeline", _SQUARE, "bf16", "smoke"),
        (_ALONE, _LINE, "fp32", "full"),
        (_ALONE, _LINE, "bf16", "smoke"),
        ("wan_pipeline", _LINE, "bf16", "full"),
        ("wan_pipeline", _SQUARE, "fp32", "smoke"),
        ("cogvideox_2b_pipeline", _LINE, "fp32", "smoke"),
        ("cogvideox_5b_pipeline", _SQUARE, "bf16", "smoke"),
        ("cogvideox_15_pipeline", _LINE, "fp32", "smoke"),
    ):
        cases.make("pipeline", f"{name}_small", layout, _SHAPE, dtype=dtype, suite=suite)
    cogvideox = ("cogvideox_2b_pipeline", "cogvideox_15_pipeline")
    for name in ("sd3_pipeline", _NO_T5, "flux1_pipeline", "wan_pipeline", _ALONE, *cogvideox):
        cases.make("request", f"{name}_small", Layout("n150", "tp1"), _SHAPE, tag="request")
    for name in ("sd3_pipeline", "flux1_pipeline", "wan_pipeline", "cogvideox_2b_pipeline"):
        cases.make("pipeline_refusals", f"{name}_small", _LINE, _SHAPE, tag="refusals")


def _like(name: str, **request: Any) -> None:
    """Register ``NAME_small``: the tiny pipeline, asked for something else."""
    tiny = PIPELINES[f"{name}_tiny"]
    register_pipeline(f"{name}_small", replace(tiny, request=replace(tiny.request, **request)))
