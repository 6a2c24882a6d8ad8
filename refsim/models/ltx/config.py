"""Keys of the config.json of these transformers, and the configuration of Wan's code that they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.schema import Layers, Size, read
from refsim.models.wan22.config import WanConfig


@dataclass(frozen=True)
class LtxVideoConfig:
    """Keys of diffusers' ``LTXVideoTransformer3DModel``, of a latent that is not cut into patches."""

    num_layers: Layers
    num_attention_heads: Size
    attention_head_dim: Size
    in_channels: Size
    out_channels: Size
    caption_channels: Size

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> WanConfig:
        k = read(cls, config)
        return WanConfig(
            (1, 1, 1), k.num_attention_heads, k.attention_head_dim, k.in_channels, k.out_channels, k.caption_channels,
            ffn_dim=4 * k.num_attention_heads * k.attention_head_dim, num_layers=k.num_layers, cross_attn_norm=False,
        )  # fmt: skip
