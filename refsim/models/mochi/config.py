"""Configuration of the Mochi 1 transformer, as diffusers' ``MochiTransformer3DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field, Strict

from refsim.base.schema import Even, Layers, Size
from refsim.blocks.config import BlocksConfig
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, StreamShape, chunks

POOL_HEADS = 8
"""Heads of the attention that pools the prompt; diffusers has the number in its code."""
_Pooled = Annotated[int, Strict(), Field(ge=1, multiple_of=POOL_HEADS), f"a multiple of {POOL_HEADS}, which pool it"]
_PARTS = ("scale", "gate")
"""Of a modulation: nothing is shifted."""


@dataclass(frozen=True)
class MochiConfig(BlocksConfig):
    """Keys and defaults of diffusers' config.json (Mochi 1 preview: 48 layers of 24 heads of 128, a prompt of 1536)."""

    patch_size: Size = 2
    num_attention_heads: Size = 24
    attention_head_dim: Even = 128
    num_layers: Layers = 48
    pooled_projection_dim: Size = 1536
    in_channels: Size = 12
    out_channels: Size = 12
    text_embed_dim: _Pooled = 4096
    time_embed_dim: Even = 256
    FIXED: ClassVar = {"qk_norm": "rms_norm", "activation_fn": "swiglu"}

    def block(self, index: int) -> DoubleStreamShape:
        """Return what ``transformer_blocks.{index}`` is made of; the last one drops the prompt after attention."""
        drops = index == self.num_layers - 1
        d = self.features
        width = self.pooled_projection_dim
        of_prompt = ModulationShape("norm1_context.linear", width, chunks("prompt.attn", "prompt.ff", parts=_PARTS))
        prompt = _stream(width, "_context")
        if drops:
            of_prompt = ModulationShape("norm1_context.linear_1", width, ("prompt.attn.scale",))
            prompt = replace(prompt, norms=("norm1_context.norm.norm", prompt.norms[1]))
        return DoubleStreamShape(
            num_heads=self.num_attention_heads,
            head_dim=self.attention_head_dim,
            time_features=d,
            modulations=(ModulationShape("norm1.linear", d, chunks("attn", "ff", parts=_PARTS)), of_prompt),
            norm="rms",
            qk_eps=1e-5,
            qkv_bias=False,
            ff_bias=False,
            activation="swiglu",
            gate="tanh",
            attention="attn1",
            context_pre_only=drops,
            answers_first=True,
            spatial=_stream(d, ""),
            prompt=replace(prompt, attention=PROMPT_NAMES),
        )


def _stream(features: int, suffix: str) -> StreamShape:
    """Return a stream whose norms before and after attention and feed-forward are the first to the fourth."""
    norm1, norm2, norm3, norm4 = (f"norm{i}{suffix}.norm" for i in (1, 2, 3, 4))
    return StreamShape(features, 8 * features // 3, norms=(norm1, norm3), ff=f"ff{suffix}", norms_out=(norm2, norm4))
