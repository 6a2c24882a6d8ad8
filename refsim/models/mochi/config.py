"""Configuration of the Mochi 1 transformer, as diffusers' ``MochiTransformer3DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.errors import UserError
from refsim.base.schema import Layers, Size, check_fixed, read
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, StreamShape, chunks

POOL_HEADS = 8
"""Heads of the attention that pools the prompt; diffusers has the number in its code."""
_PARTS = ("scale", "gate")
"""Of a modulation: nothing is shifted."""
_FIXED = {"qk_norm": "rms_norm", "activation_fn": "swiglu"}


@dataclass(frozen=True)
class MochiConfig:
    """Keys and defaults of diffusers' config.json (Mochi 1 preview: 48 layers of 24 heads of 128, a prompt of 1536)."""

    patch_size: Size = 2
    num_attention_heads: Size = 24
    attention_head_dim: Size = 128
    num_layers: Layers = 48
    pooled_projection_dim: Size = 1536
    in_channels: Size = 12
    out_channels: Size = 12
    text_embed_dim: Size = 4096
    time_embed_dim: Size = 256

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> MochiConfig:
        """Read a parsed config.json; ``UserError`` for a value this model cannot have."""
        if config.get("out_channels") is None:
            config = config | {"out_channels": config.get("in_channels", cls.in_channels)}
        result = read(cls, config)
        check_fixed(config, _FIXED)
        if result.text_embed_dim % POOL_HEADS:
            raise UserError(
                f"config.json has text_embed_dim = {result.text_embed_dim}; it must divide into {POOL_HEADS} heads."
            )
        for name in ("attention_head_dim", "time_embed_dim"):
            if getattr(result, name) % 2:
                raise UserError(f"config.json has {name} = {getattr(result, name)}; it must be even.")
        return result

    def grid(self, size: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the patches (frames, rows, columns) of a latent; ``UserError`` if it does not divide into them."""
        frames, height, width = size
        p = self.patch_size
        if height % p or width % p:
            raise UserError(f"a latent of {height}x{width} does not divide into {p}x{p} patches; pad or crop it.")
        return frames, height // p, width // p

    def block(self, index: int) -> DoubleStreamShape:
        """Return what ``transformer_blocks.{index}`` is made of; the last one drops the prompt after attention."""
        drops = index == self.num_layers - 1
        prompt_linear = "norm1_context.linear"
        prompt_chunks = chunks("prompt.attn", "prompt.ff", parts=_PARTS)
        if drops:
            prompt_linear = "norm1_context.linear_1"
            prompt_chunks = ("prompt.attn.scale",)
        d = self.features
        prompt = self.pooled_projection_dim
        return DoubleStreamShape(
            num_heads=self.num_attention_heads,
            head_dim=self.attention_head_dim,
            time_features=d,
            modulations=(
                ModulationShape("norm1.linear", d, chunks("attn", "ff", parts=_PARTS)),
                ModulationShape(prompt_linear, prompt, prompt_chunks),
            ),
            norm="rms",
            eps=1e-6,
            qk_eps=1e-5,
            qkv_bias=False,
            ff_bias=False,
            activation="swiglu",
            gate="tanh",
            attention="attn1",
            context_pre_only=drops,
            answers_first=True,
            spatial=StreamShape(
                d, 8 * d // 3, norms=("norm1.norm", "norm3.norm"), norms_out=("norm2.norm", "norm4.norm")
            ),
            prompt=StreamShape(
                prompt,
                8 * prompt // 3,
                PROMPT_NAMES,
                norms=(f"norm1_context.norm{'.norm' * drops}", "norm3_context.norm"),
                ff="ff_context",
                norms_out=("norm2_context.norm", "norm4_context.norm"),
            ),
        )
