"""Keys of the config.json of these transformers, and the outline that they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.schema import Count, Positive, Size, read
from refsim.models.outline import TIME, Keys, Outline


@dataclass(frozen=True)
class Flux2Config(Keys):
    """Keys of diffusers' ``Flux2Transformer2DModel``."""

    num_single_layers: Count
    in_channels: Size
    joint_attention_dim: Size
    mlp_ratio: Positive

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Outline:
        k = read(cls, config)
        d = k.features
        hidden = int(k.mlp_ratio * d)
        return Outline(
            **k.sizes, num_single_layers=k.num_single_layers, token_features=k.in_channels, out_features=k.in_channels,
            text_features=k.joint_attention_dim, hidden=hidden, prompt_features=d, prompt_hidden=hidden,
            time=(TIME, d, d), gated=True, shared=True,
        )  # fmt: skip
