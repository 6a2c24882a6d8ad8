"""A tiny diffusers FluxPipeline with CLIP, T5, a 16-channel autoencoder and tokenizers of words."""

from __future__ import annotations

from tests.refsim.tiny.flux1 import make_model
from tests.refsim.tiny.sd3_pipeline import make_clip_tokenizer
from tests.refsim.tiny.sd_vae import make_vae
from tests.refsim.tiny.text import make_clip, make_encoder, make_tokenizer


def make_pipeline(*, guidance_embeds: bool = True, **changes):
    """Dev, whose scheduler shifts by the number of tokens; schnell without ``guidance_embeds``, whose does not."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    shifts = {"shift": 3.0, "use_dynamic_shifting": True} if guidance_embeds else {"shift": 1.0}
    sizes = {"in_channels": 64, "joint_attention_dim": 24, "pooled_projection_dim": 30}
    parts = {
        "tokenizer": make_clip_tokenizer(),
        "tokenizer_2": make_tokenizer(),
        "text_encoder": make_clip(projected=False),
        "text_encoder_2": make_encoder("t5"),
        "vae": make_vae(),
        "scheduler": FlowMatchEulerDiscreteScheduler(**shifts),
        "transformer": make_model(guidance_embeds=guidance_embeds, **sizes),
    }
    pipe = FluxPipeline(**{**parts, **changes})
    pipe.set_progress_bar_config(disable=True)
    return pipe
