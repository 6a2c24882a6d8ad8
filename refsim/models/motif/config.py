"""Keys of the config.json of these transformers, and the outline that they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.models.outline import Keys, Outline
from refsim.schema import Size, read


@dataclass(frozen=True)
class MotifConfig(Keys):
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
