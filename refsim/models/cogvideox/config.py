"""Configuration of a CogVideoX transformer, as diffusers' ``CogVideoXTransformer3DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError

_FIXED = {
    "activation_fn": "gelu-approximate",
    "timestep_activation_fn": "silu",
    "norm_elementwise_affine": True,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "use_learned_positional_embeddings": False,
    "ofs_embed_dim": None,
}


@dataclass(frozen=True)
class CogVideoXConfig:
    """Keys and defaults of diffusers' config.json (2b: 30 layers of 30 heads, sincos; 5b: 42 of 48, rotary; 1.5: as
    5b, patches of ``patch_size_t`` = 2 frames)."""

    num_attention_heads: int = 30
    attention_head_dim: int = 64
    in_channels: int = 16
    out_channels: int = 16
    time_embed_dim: int = 512
    text_embed_dim: int = 4096
    num_layers: int = 30
    attention_bias: bool = True
    sample_width: int = 90
    sample_height: int = 60
    patch_size: int = 2
    patch_size_t: int | None = None
    norm_eps: float = 1e-5
    spatial_interpolation_scale: float = 1.875
    temporal_interpolation_scale: float = 1.0
    use_rotary_positional_embeddings: bool = False

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> CogVideoXConfig:
        """Read a parsed config.json; ``UserError`` for a value this model cannot have."""
        for name, wanted in _FIXED.items():
            if config.get(name, wanted) != wanted:
                raise UserError(f"config.json has {name} = {config[name]!r}; {wanted!r} is supported.")
        types = {f.name: f.type for f in fields(cls)}
        given = {name: value for name, value in config.items() if name in types and value is not None}
        for name, value in given.items():
            if types[name].startswith("int") and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UserError(f"config.json has {name} = {value!r}; it must be a whole number above 0.")
        result = cls(**given)
        if result.patch_size_t and not result.use_rotary_positional_embeddings:
            raise UserError("config.json has patch_size_t without use_rotary_positional_embeddings, which 1.5 has.")
        if not result.patch_size_t and not config.get("patch_bias", True):
            raise UserError("config.json has patch_bias = false without patch_size_t; only 1.5 has it so.")
        if result.attention_head_dim % 16:
            raise UserError(
                f"config.json has attention_head_dim = {result.attention_head_dim}; a multiple of 16 is needed to give "
                "a quarter to time and three eighths each to height and width."
            )
        return result
