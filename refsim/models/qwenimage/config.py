"""Configuration of the Qwen-Image transformer, as diffusers' ``QwenImageTransformer2DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.errors import UserError
from refsim.base.schema import Count, Flag, Size, read
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, StreamShape, chunks


@dataclass(frozen=True)
class QwenImageConfig:
    """Keys and defaults of diffusers' config.json; Edit-2511 has ``zero_cond_t``, Layered the two after it."""

    patch_size: Size = 2
    in_channels: Size = 64
    out_channels: Size = 16
    num_layers: Count = 60
    attention_head_dim: Size = 128
    num_attention_heads: Size = 24
    joint_attention_dim: Size = 3584
    axes_dims_rope: tuple[Size, ...] = (16, 56, 56)
    zero_cond_t: Flag = False
    use_additional_t_cond: Flag = False
    use_layer3d_rope: Flag = False

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    def block(self) -> DoubleStreamShape:
        """Return what a block is made of."""
        d = self.features
        return DoubleStreamShape(
            self.num_attention_heads,
            self.attention_head_dim,
            d,
            (
                ModulationShape("img_mod.1", d),
                ModulationShape("txt_mod.1", d, chunks("prompt.attn", "prompt.ff")),
            ),
            spatial=StreamShape(d, 4 * d, norms=("img_norm1", "img_norm2"), ff="img_mlp"),
            prompt=StreamShape(d, 4 * d, PROMPT_NAMES, ("txt_norm1", "txt_norm2"), "txt_mlp"),
        )

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> QwenImageConfig:
        """From a parsed config.json; ``UserError`` for a value this model cannot have."""
        if config.get("out_channels") is None and "out_channels" in config:
            config = config | {"out_channels": config.get("in_channels", cls.in_channels)}
        result = read(cls, config)
        if result.use_additional_t_cond or result.use_layer3d_rope:
            raise UserError("config.json is Qwen-Image-Layered's, which is not known here: use_layer3d_rope is true.")
        axes = result.axes_dims_rope
        if len(axes) != 3 or sum(axes) != result.attention_head_dim or any(n % 2 for n in axes):
            raise UserError(
                f"config.json has axes_dims_rope = {list(axes)}; three even numbers are needed that add up to "
                f"attention_head_dim, which is {result.attention_head_dim}."
            )
        return result
