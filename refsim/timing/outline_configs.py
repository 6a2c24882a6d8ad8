"""What the config.json of models that only predictions know comes to: an outline, or a configuration of Wan's code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.models.wan22.config import WanConfig
from refsim.schema import Count, Layers, Positive, Size, read
from refsim.timing.outline import Outline


@dataclass(frozen=True)
class _Keys:
    """What the config.json of these models have in common."""

    num_layers: Layers
    num_attention_heads: Size
    attention_head_dim: Size

    @property
    def sizes(self) -> dict[str, Any]:
        return {"layers": self.num_layers, "heads": self.num_attention_heads, "head_dim": self.attention_head_dim}

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


_TIME = 256
"""Features of the sinusoids of a time step."""


@dataclass(frozen=True)
class QwenImage(_Keys):
    """Keys of diffusers' ``QwenImageTransformer2DModel``."""

    in_channels: Size = 64
    out_channels: Size = 16
    joint_attention_dim: Size = 3584
    patch_size: Size = 2

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Outline:
        k = read(cls, config)
        d = k.features
        return Outline(
            **k.sizes, token_features=k.in_channels, out_features=k.patch_size**2 * k.out_channels,
            text_features=k.joint_attention_dim, hidden=4 * d, prompt_features=d, prompt_hidden=4 * d,
            time=(_TIME, d, d),
        )  # fmt: skip


@dataclass(frozen=True)
class Flux2(_Keys):
    """Keys of diffusers' ``Flux2Transformer2DModel``."""

    num_single_layers: Count
    in_channels: Size = 128
    joint_attention_dim: Size = 15360
    mlp_ratio: Positive = 3.0

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Outline:
        k = read(cls, config)
        d = k.features
        hidden = int(k.mlp_ratio * d)
        return Outline(
            **k.sizes, single=k.num_single_layers, token_features=k.in_channels, out_features=k.in_channels,
            text_features=k.joint_attention_dim, hidden=hidden, prompt_features=d, prompt_hidden=hidden,
            time=(_TIME, d, d), gated=True, shared=True,
        )  # fmt: skip


@dataclass(frozen=True)
class Mochi(_Keys):
    """Keys of diffusers' ``MochiTransformer3DModel``; tokens are its latent's patches."""

    pooled_projection_dim: Size = 1536
    in_channels: Size = 12
    text_embed_dim: Size = 4096
    patch_size: Size = 2

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Outline:
        k = read(cls, config)
        d, prompt, patch = k.features, k.pooled_projection_dim, k.patch_size**2 * k.in_channels
        return Outline(
            **k.sizes, token_features=patch, out_features=patch, text_features=k.text_embed_dim, hidden=8 * d // 3,
            prompt_features=prompt, prompt_hidden=8 * prompt // 3, time=(_TIME, d, d), gated=True, chunks=4,
            last_chunks=1, norms_out=True,
        )  # fmt: skip


@dataclass(frozen=True)
class Motif(_Keys):
    """Keys of tt_dit's ``MotifTransformerConfig``; of Motif-6B's linears, those that are one matrix count once."""

    modulation_dim: Size = 4096
    time_embed_dim: Size = 4096
    patch_size: Size = 2
    in_channels: Size = 16
    text_dim: Size = 4096

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Outline:
        k = read(cls, config)
        d, patch = k.features, k.patch_size**2 * k.in_channels
        return Outline(
            **k.sizes, token_features=patch, out_features=patch, text_features=k.text_dim, hidden=4 * d,
            prompt_features=d, prompt_hidden=4 * d, time=(k.time_embed_dim, 4 * k.time_embed_dim, k.modulation_dim),
            last_chunks=2, rotary=False,
        )  # fmt: skip


@dataclass(frozen=True)
class LtxVideo(_Keys):
    """Keys of diffusers' ``LTXVideoTransformer3DModel``, of a latent that is not cut into patches."""

    in_channels: Size = 128
    out_channels: Size = 128
    caption_channels: Size = 4096

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> WanConfig:
        k = read(cls, config)
        return WanConfig(
            (1, 1, 1), k.num_attention_heads, k.attention_head_dim, k.in_channels, k.out_channels, k.caption_channels,
            ffn_dim=4 * k.features, num_layers=k.num_layers, cross_attn_norm=False,
        )  # fmt: skip
