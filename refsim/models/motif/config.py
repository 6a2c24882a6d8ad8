"""Keys of the config.json of these transformers, and the outline that they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.schema import Size, read
from refsim.models.outline import Keys, Outline


@dataclass(frozen=True)
class MotifConfig(Keys):
    """Keys of tt_dit's ``MotifTransformerConfig``; of Motif-6B's linears, those that are one matrix count once."""

    modulation_dim: Size
    time_embed_dim: Size
    patch_size: Size
    in_channels: Size
    text_dim: Size

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Outline:
        k = read(cls, config)
        d = k.features
        patch = k.patch_size**2 * k.in_channels
        return Outline(
            **k.sizes, token_features=patch, out_features=patch, text_features=k.text_dim, hidden=4 * d,
            prompt_features=d, prompt_hidden=4 * d, time=(k.time_embed_dim, 4 * k.time_embed_dim, k.modulation_dim),
            last_chunks=2, rotary=False,
        )  # fmt: skip
