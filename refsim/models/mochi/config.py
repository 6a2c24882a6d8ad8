"""Keys of the config.json of these transformers, and the outline that they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.schema import Size, read
from refsim.models.outline import TIME, Keys, Outline


@dataclass(frozen=True)
class MochiConfig(Keys):
    """Keys of diffusers' ``MochiTransformer3DModel``; tokens are its latent's patches."""

    pooled_projection_dim: Size
    in_channels: Size
    text_embed_dim: Size
    patch_size: Size

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Outline:
        k = read(cls, config)
        d = k.features
        prompt = k.pooled_projection_dim
        patch = k.patch_size**2 * k.in_channels
        return Outline(
            **k.sizes, token_features=patch, out_features=patch, text_features=k.text_embed_dim, hidden=8 * d // 3,
            prompt_features=prompt, prompt_hidden=8 * prompt // 3, time=(TIME, d, d), gated=True, chunks=4,
            last_chunks=1, norms_out=True,
        )  # fmt: skip
