"""Configuration of the SD3.5 transformer, as diffusers' ``SD3Transformer2DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.schema import Count, Size, read
from refsim.blocks.config import BlocksConfig
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, StreamShape, chunks


@dataclass(frozen=True)
class SD35Config(BlocksConfig):
    """Keys and defaults of diffusers' config.json (medium: 24 layers of 24 heads, large: 38 layers of 38 heads)."""

    sample_size: Size = 128
    patch_size: Size = 2
    in_channels: Size = 16
    num_layers: Size = 18
    attention_head_dim: Size = 64
    num_attention_heads: Size = 18
    joint_attention_dim: Size = 4096
    caption_projection_dim: Size = 1152
    pooled_projection_dim: Size = 2048
    out_channels: Size = 16
    pos_embed_max_size: Size = 96
    dual_attention_layers: tuple[Count, ...] = ()
    qk_norm: Literal["rms_norm", None] = None

    def block(self, index: int) -> DoubleStreamShape:
        """Return what block ``index`` is made of: Medium's first ones have a second attention."""
        d = self.features
        dual = index in self.dual_attention_layers
        last = index == self.num_layers - 1
        image_chunks = chunks("attn", "ff", "attn2") if dual else chunks("attn", "ff")
        prompt_chunks = chunks("prompt.attn", parts=("scale", "shift")) if last else chunks("prompt.attn", "prompt.ff")
        return DoubleStreamShape(
            self.num_attention_heads,
            self.attention_head_dim,
            d,
            (
                ModulationShape("norm1.linear", d, image_chunks),
                ModulationShape("norm1_context.linear", d, prompt_chunks),
            ),
            spatial=StreamShape(d, 4 * d, norms=("norm1.norm", "norm2")),
            prompt=StreamShape(d, 4 * d, PROMPT_NAMES, ("norm1_context.norm", "norm2_context"), "ff_context"),
            qk_norm="none" if self.qk_norm is None else "rms",
            context_pre_only=last,
            second="attn2" if dual else None,
        )

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> SD35Config:
        """Read a parsed config.json; ``UserError`` for a value this model cannot have."""
        if config.get("out_channels", 0) is None:
            config = config | {"out_channels": config.get("in_channels", cls.in_channels)}
        result = read(cls, config, may_be_null=("dual_attention_layers",))
        if result.caption_projection_dim != result.features:
            raise UserError(
                f"config.json has caption_projection_dim {result.caption_projection_dim}, but "
                f"{result.num_attention_heads} heads of {result.attention_head_dim} make {result.features}; "
                "they must be equal."
            )
        return result
