"""Configuration of a Wan2.2 expert, as diffusers' ``WanTransformer3DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from refsim.errors import UserError
from refsim.schema import Flag, Positive, Size, read, short

_ABSENT = ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len")


@dataclass(frozen=True)
class WanConfig:
    """Keys and defaults of diffusers' config.json (A14B: 40 layers of 40 heads of 128)."""

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

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> WanConfig:
        """Read a parsed config.json; ``UserError`` for a value this model cannot have."""
        for name in _ABSENT:
            if config.get(name) is not None:
                raise UserError(
                    f"config.json has {name} = {short(config[name])}, an image-to-video model; "
                    "the text-to-video model (null there) is supported."
                )
        if config.get("out_channels") is None:
            config = config | {"out_channels": config.get("in_channels", cls.in_channels)}
        result = read(cls, config)
        if result.attention_head_dim % 2 or result.attention_head_dim < 6:
            raise UserError(
                f"config.json has attention_head_dim = {result.attention_head_dim}; an even number from 6 on is needed "
                "to turn pairs of features by time, height and width."
            )
        return result
