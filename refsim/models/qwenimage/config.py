"""Configuration of the Qwen-Image transformer, as diffusers' ``QwenImageTransformer2DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from refsim.base.errors import UserError
from refsim.base.schema import Count, Flag, Size
from refsim.blocks.config import BlocksConfig, check_rotary_axes
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, StreamShape, chunks

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class QwenImageConfig(BlocksConfig):
    """Keys and defaults of diffusers' config.json; Edit-2511 has ``zero_cond_t``, Layered the two after it."""

    patch_size: Size = 2
    in_channels: Size = 64
    out_channels: Size = 16
    num_layers: Count = 60
    attention_head_dim: Size = 128
    num_attention_heads: Size = 24
    joint_attention_dim: Size = 3584
    axes_dims_rope: tuple[Size, Size, Size] = (16, 56, 56)
    zero_cond_t: Flag = False
    use_additional_t_cond: Flag = False
    use_layer3d_rope: Flag = False

    def block(self, index: int) -> DoubleStreamShape:
        """Return what every block is made of."""
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

    def check(self) -> None:
        if self.use_additional_t_cond or self.use_layer3d_rope:
            raise UserError("config.json is Qwen-Image-Layered's, which is not known here: use_layer3d_rope is true.")
        check_rotary_axes(self.axes_dims_rope, self.attention_head_dim, "three even numbers")

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> QwenImageConfig:
        """Read a parsed config.json as the others, where only ``out_channels`` of null are as many as go in."""
        return super().from_dict({"out_channels": cls.out_channels} | config)


def image_sizes(img_shapes_M3: Tensor, tokens: int) -> list[list[int]]:
    """Return (frames, rows, columns) of every image's tokens; on meta one row of all.

    Raises:
        UserError: the images do not have as many ``tokens``.
    """
    sizes = [[1, 1, tokens]] if img_shapes_M3.is_meta else img_shapes_M3.long().tolist()
    if sum(map(prod, sizes)) != tokens:
        raise UserError(
            f"img_shapes is {sizes}, {sum(map(prod, sizes))} tokens in all, but hidden_states has {tokens}; give "
            "(frames, rows, columns) of tokens of every image, the target's first."
        )
    return sizes
