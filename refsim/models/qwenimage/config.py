"""Keys of the config.json of these transformers, and the outline that they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.schema import Size, read
from refsim.models.outline import TIME, Keys, Outline


@dataclass(frozen=True)
class QwenImageConfig(Keys):
    """Keys of diffusers' ``QwenImageTransformer2DModel``."""

    in_channels: Size
    out_channels: Size
    joint_attention_dim: Size
    patch_size: Size

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Outline:
        k = read(cls, config)
        d = k.features
        return Outline(
            **k.sizes, token_features=k.in_channels, out_features=k.patch_size**2 * k.out_channels,
            text_features=k.joint_attention_dim, hidden=4 * d, prompt_features=d, prompt_hidden=4 * d,
            time=(TIME, d, d),
        )  # fmt: skip
