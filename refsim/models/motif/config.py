"""Keys of the config.json of Motif's transformer, and what its blocks are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.schema import Layers, Size, read
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, StreamShape, chunks


@dataclass(frozen=True)
class MotifConfig:
    """Keys of tt_dit's ``MotifTransformerConfig``; of Motif-6B's linears, those that are one matrix count once."""

    num_layers: Layers
    num_attention_heads: Size
    attention_head_dim: Size
    modulation_dim: Size
    time_embed_dim: Size
    patch_size: Size
    in_channels: Size
    text_dim: Size

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def token_features(self) -> int:
        """Numbers of a patch, which go in and come out."""
        return self.patch_size**2 * self.in_channels

    def block(self, index: int) -> DoubleStreamShape:
        """Return what block ``index`` is made of; the last one drops the prompt."""
        d = self.features
        last = index == self.num_layers - 1
        prompt_chunks = chunks("prompt.attn", parts=("scale", "shift")) if last else chunks("prompt.attn", "prompt.ff")
        return DoubleStreamShape(
            self.num_attention_heads,
            self.attention_head_dim,
            self.modulation_dim,
            (ModulationShape("norm1.linear", d), ModulationShape("norm1_context.linear", d, prompt_chunks)),
            spatial=StreamShape(d, 4 * d),
            prompt=StreamShape(d, 4 * d, PROMPT_NAMES, ("norm1_context", "norm2_context"), "ff_context"),
            context_pre_only=last,
        )

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> MotifConfig:
        """Read a parsed config.json."""
        return read(cls, config)
