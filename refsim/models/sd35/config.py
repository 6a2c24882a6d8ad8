"""Configuration of the SD3.5 transformer, as diffusers' ``SD3Transformer2DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError


@dataclass(frozen=True)
class SD35Config:
    """Keys and defaults of diffusers' config.json (medium: 24 layers of 24 heads, large: 38 layers of 38 heads)."""

    sample_size: int = 128
    patch_size: int = 2
    in_channels: int = 16
    num_layers: int = 18
    attention_head_dim: int = 64
    num_attention_heads: int = 18
    joint_attention_dim: int = 4096
    caption_projection_dim: int = 1152
    pooled_projection_dim: int = 2048
    out_channels: int = 16
    pos_embed_max_size: int = 96
    dual_attention_layers: tuple[int, ...] = ()
    qk_norm: str | None = None

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> SD35Config:
        """Read a parsed config.json; ``UserError`` for a value this model cannot have."""
        known = {f.name: f.type for f in fields(cls)}
        given = {k: v for k, v in config.items() if k in known}
        dual = given.get("dual_attention_layers") or ()
        given["dual_attention_layers"] = tuple(dual) if isinstance(dual, (list, tuple)) else (dual,)
        for name, value in given.items():
            whole = value if name == "dual_attention_layers" else (value,) if known[name] == "int" else ()
            if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in whole):
                raise UserError(f"config.json has {name} = {value!r}; it must be made of whole numbers.")
        result = cls(**given)
        if result.qk_norm not in (None, "rms_norm"):
            raise UserError(f"config.json has qk_norm = {result.qk_norm!r}; rms_norm and null are supported.")
        if result.caption_projection_dim != result.features:
            raise UserError(
                f"config.json has caption_projection_dim {result.caption_projection_dim}, but "
                f"{result.num_attention_heads} heads of {result.attention_head_dim} make {result.features}; "
                "they must be equal."
            )
        if min(result.num_layers, result.features, result.patch_size, result.in_channels) < 1:
            raise UserError("config.json has a layer count, head count, head size, patch or channel count of 0.")
        return result
