"""Configuration of a CogVideoX transformer, as diffusers' ``CogVideoXTransformer3DModel`` writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from refsim.base.errors import UserError
from refsim.base.schema import Flag, Positive, Size, check, check_fixed, read
from refsim.blocks.config import BlocksConfig
from refsim.blocks.shape import DoubleStreamShape, ModulationShape, StreamShape, chunks

_FIXED = {
    "activation_fn": "gelu-approximate",
    "timestep_activation_fn": "silu",
    "norm_elementwise_affine": True,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "use_learned_positional_embeddings": False,
}


@dataclass(frozen=True)
class CogVideoXConfig(BlocksConfig):
    """Keys and defaults of diffusers' config.json (2b: 30 layers of 30 heads, sincos; 5b: 42 of 48, rotary; 1.5: as
    5b, patches of ``patch_size_t`` = 2 frames, and ``ofs_embed_dim`` where it makes a video of an image)."""

    num_attention_heads: Size = 30
    attention_head_dim: Size = 64
    in_channels: Size = 16
    out_channels: Size = 16
    time_embed_dim: Size = 512
    text_embed_dim: Size = 4096
    num_layers: Size = 30
    attention_bias: Flag = True
    sample_width: Size = 90
    sample_height: Size = 60
    sample_frames: Size = 49
    max_text_seq_length: Size = 226
    patch_size: Size = 2
    patch_size_t: Size | None = None
    ofs_embed_dim: Size | None = None
    norm_eps: Positive = 1e-5
    spatial_interpolation_scale: Positive = 1.875
    temporal_interpolation_scale: Positive = 1.0
    use_rotary_positional_embeddings: Flag = False

    @property
    def patch(self) -> tuple[int, int, int]:
        """Frames, rows and columns of a patch."""
        return self.patch_size_t or 1, self.patch_size, self.patch_size

    @property
    def patch_features(self) -> int | tuple[int, int, int]:
        """Features of a patch, as its weight has them: 1.5's is a linear's, the others' a convolution's."""
        c = self.in_channels
        return c * math.prod(self.patch) if self.patch_size_t else (c, self.patch_size, self.patch_size)

    def block(self, index: int) -> DoubleStreamShape:
        """Return what a block is made of: video and text share every weight, and each linear of the time step makes
        the shift, scale and gate of the one and of the other."""
        d = self.features
        return DoubleStreamShape(
            self.num_attention_heads,
            self.attention_head_dim,
            self.time_embed_dim,
            (
                ModulationShape("norm1.linear", d, chunks("attn", "prompt.attn")),
                ModulationShape("norm2.linear", d, chunks("ff", "prompt.ff")),
            ),
            norm="layer_affine",
            eps=self.norm_eps,
            qk_norm="layer_affine",
            qkv_bias=self.attention_bias,
            spatial=StreamShape(d, 4 * d, norms=("norm1.norm", "norm2.norm")),
            prompt=None,
            attention="attn1",
        )

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> CogVideoXConfig:
        """Read a parsed config.json; ``UserError`` for a value this model cannot have."""
        result = read(cls, config, may_be_null=("out_channels",))
        check_fixed(config, _FIXED)
        if result.patch_size_t and not result.use_rotary_positional_embeddings:
            raise UserError("config.json has patch_size_t without use_rotary_positional_embeddings, which 1.5 has.")
        if not result.patch_size_t and not check(Flag, config.get("patch_bias", True), "patch_bias"):
            raise UserError("config.json has patch_bias = false without patch_size_t; only 1.5 has it so.")
        if result.ofs_embed_dim not in (None, result.time_embed_dim):
            raise UserError(
                f"config.json has ofs_embed_dim = {result.ofs_embed_dim}; it is added to the time step and must be "
                f"null or time_embed_dim {result.time_embed_dim}."
            )
        if result.attention_head_dim % 16:
            raise UserError(
                f"config.json has attention_head_dim = {result.attention_head_dim}; a multiple of 16 is needed to give "
                "a quarter to time and three eighths each to height and width."
            )
        return result
