"""A tiny diffusers WanPipeline with two experts, UMT5, a tokenizer of words and the video autoencoder."""

from __future__ import annotations

from tests.refsim.tiny.text import make_encoder, make_tokenizer
from tests.refsim.tiny.wan import make_model, make_vae


def make_pipeline(**changes):
    from diffusers import UniPCMultistepScheduler, WanPipeline

    schedule = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 5.0}
    parts = {
        "tokenizer": make_tokenizer(),
        "text_encoder": make_encoder("umt5"),
        "vae": make_vae(),
        "scheduler": UniPCMultistepScheduler(**schedule),
        "transformer": make_model(0),
        "transformer_2": make_model(1),
        "boundary_ratio": 0.875,
    }
    pipe = WanPipeline(**{**parts, **changes})
    pipe.set_progress_bar_config(disable=True)
    return pipe
