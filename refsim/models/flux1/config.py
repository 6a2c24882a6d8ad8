"""Configuration of the Flux.1 transformer, as diffusers' ``FluxTransformer2DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError

_LAYERS = ("num_layers", "num_single_layers")


@dataclass(frozen=True)
class FluxConfig:
    """Keys and defaults of diffusers' config.json (dev and schnell: 19 double and 38 single blocks of 24 heads of 128;
    only dev has ``guidance_embeds``)."""

    patch_size: int = 1
    in_channels: int = 64
    out_channels: int = 64
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def mlp_features(self) -> int:
        """Hidden features of a feed-forward, and of a single block's MLP."""
        return 4 * self.features

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> FluxConfig:
        """From a parsed config.json; ``UserError`` for a value this model cannot have."""
        types = {f.name: f.type for f in fields(cls)}
        given = {name: value for name, value in config.items() if name in types}
        if given.get("out_channels") is None:
            given["out_channels"] = given.get("in_channels", cls.in_channels)
        axes = given.get("axes_dims_rope", cls.axes_dims_rope)
        given["axes_dims_rope"] = tuple(axes) if isinstance(axes, (list, tuple)) else (axes,)
        for name, value in given.items():
            whole = value if name == "axes_dims_rope" else (value,) if types[name] == "int" else ()
            least = 0 if name in _LAYERS else 1
            if not all(isinstance(v, int) and not isinstance(v, bool) and v >= least for v in whole):
                raise UserError(
                    f"config.json has {name} = {value!r}; it must be made of whole numbers from {least} on."
                )
        result = cls(**given)
        if not isinstance(result.guidance_embeds, bool):
            raise UserError(f"config.json has guidance_embeds = {result.guidance_embeds!r}; it is true or false.")
        if sum(result.axes_dims_rope) != result.attention_head_dim or any(n % 2 for n in result.axes_dims_rope):
            raise UserError(
                f"config.json has axes_dims_rope = {list(result.axes_dims_rope)}; even numbers are needed that add up "
                f"to attention_head_dim, which is {result.attention_head_dim}."
            )
        return result
