"""Configuration of a Wan2.2 expert, as diffusers' ``WanTransformer3DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.schema import Flag, Positive, Size, read, short


@dataclass(frozen=True)
class WanConfig:
    """Keys and defaults of diffusers' config.json (A14B: 40 layers of 40 heads of 128).

    Wan2.1's image-to-video model embeds an image's features (``image_dim``), which have keys and values of their own in
    every block; that of Wan2.2 takes the image as further channels of the latent (``in_channels`` 36) and has neither.
    """

    patch_size: tuple[Size, Size, Size] = (1, 2, 2)
    num_attention_heads: Size = 40
    attention_head_dim: Size = 128
    in_channels: Size = 16
    out_channels: Size = 16
    text_dim: Size = 4096
    freq_dim: Size = 256
    ffn_dim: Size = 13824
    num_layers: Size = 40
    cross_attn_norm: Flag = True
    qk_norm: Literal["rms_norm_across_heads"] = "rms_norm_across_heads"
    eps: Positive = 1e-6
    rope_max_seq_len: Size = 1024
    image_dim: Size | None = None
    added_kv_proj_dim: Size | None = None

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> WanConfig:
        """Read a parsed config.json; ``UserError`` for a value this model cannot have."""
        if config.get("pos_embed_seq_len") is not None:
            raise UserError(
                f"config.json has pos_embed_seq_len = {short(config['pos_embed_seq_len'])}, a model of first and last "
                "frame; text-to-video and image-to-video models (null there) are supported."
            )
        if config.get("out_channels", 0) is None:
            config = config | {"out_channels": config.get("in_channels", cls.in_channels)}
        result = read(cls, config)
        if result.attention_head_dim % 2 or result.attention_head_dim < 6:
            raise UserError(
                f"config.json has attention_head_dim = {result.attention_head_dim}; an even number from 6 on is needed "
                "to turn pairs of features by time, height and width."
            )
        if result.added_kv_proj_dim != (None if result.image_dim is None else result.features):
            raise UserError(
                f"config.json has image_dim = {result.image_dim} and added_kv_proj_dim = {result.added_kv_proj_dim}; "
                f"an image-to-video model with image_dim needs {result.features} there, any other null."
            )
        return result
