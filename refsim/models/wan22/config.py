"""Configuration of a Wan2.2 expert, as diffusers' ``WanTransformer3DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError

_ABSENT = ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len")


@dataclass(frozen=True)
class WanConfig:
    """Keys and defaults of diffusers' config.json (A14B: 40 layers of 40 heads of 128)."""

    patch_size: tuple[int, int, int] = (1, 2, 2)
    num_attention_heads: int = 40
    attention_head_dim: int = 128
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    ffn_dim: int = 13824
    num_layers: int = 40
    cross_attn_norm: bool = True
    qk_norm: str | None = "rms_norm_across_heads"
    eps: float = 1e-6
    rope_max_seq_len: int = 1024

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> WanConfig:
        """Read a parsed config.json; ``UserError`` for a value this model cannot have."""
        for name in _ABSENT:
            if config.get(name) is not None:
                raise UserError(
                    f"config.json has {name} = {config[name]!r}, an image-to-video model; "
                    "the text-to-video model (null there) is supported."
                )
        types = {f.name: f.type for f in fields(cls)}
        given = {name: value for name, value in config.items() if name in types}
        given["patch_size"] = tuple(given.get("patch_size") or cls.patch_size)
        given["out_channels"] = given.get("out_channels") or given.get("in_channels", cls.in_channels)
        for name, value in given.items():
            whole = value if name == "patch_size" else (value,) if types[name] == "int" else ()
            if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 1 for v in whole):
                raise UserError(f"config.json has {name} = {value!r}; it must be made of whole numbers above 0.")
        if len(given["patch_size"]) != 3:
            raise UserError(f"config.json has patch_size = {given['patch_size']!r}; it is (frames, rows, columns).")
        result = cls(**given)
        if result.qk_norm != "rms_norm_across_heads":
            raise UserError(f"config.json has qk_norm = {result.qk_norm!r}; rms_norm_across_heads is supported.")
        if result.attention_head_dim % 2 or result.attention_head_dim < 6:
            raise UserError(
                f"config.json has attention_head_dim = {result.attention_head_dim}; an even number from 6 on is needed "
                "to turn pairs of features by time, height and width."
            )
        return result
