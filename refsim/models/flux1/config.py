"""Configuration of the Flux.1 transformer, as diffusers' ``FluxTransformer2DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass

from refsim.base.errors import UserError
from refsim.base.schema import Count, Flag, Size
from refsim.blocks.config import BlocksConfig, check_rotary_axes
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, SingleStreamShape, StreamShape, chunks


@dataclass(frozen=True)
class FluxBlocks(BlocksConfig):
    """What configurations of Flux.1 and FLUX.2 have in common: double blocks, then single ones, and rotary axes."""

    num_single_layers: Count
    joint_attention_dim: Size
    axes_dims_rope: tuple[Size, ...]

    @property
    def rope_theta(self) -> float:
        return 10000.0

    @property
    def block_count(self) -> int:
        return self.num_layers + self.num_single_layers

    def block(self, index: int) -> DoubleStreamShape | SingleStreamShape:
        return self.double_block() if index < self.num_layers else self.single_block()

    def block_name(self, index: int) -> str:
        """Return what the names of a block's weights begin with; single ones are counted on from the double ones."""
        single = index - self.num_layers
        return f"transformer_blocks.{index}" if single < 0 else f"single_transformer_blocks.{single}"

    def double_block(self) -> DoubleStreamShape:
        """Return what a double block is made of."""
        raise NotImplementedError

    def single_block(self) -> SingleStreamShape:
        """Return what a single block is made of."""
        raise NotImplementedError

    def check(self) -> None:
        if not self.block_count:
            raise UserError("config.json has no blocks; num_layers or num_single_layers must be above 0.")
        check_rotary_axes(self.axes_dims_rope, self.attention_head_dim)


@dataclass(frozen=True)
class FluxConfig(FluxBlocks):
    """Keys and defaults of diffusers' config.json (dev and schnell: 19 double and 38 single blocks of 24 heads of 128;
    only dev has ``guidance_embeds``)."""

    patch_size: Size = 1
    in_channels: Size = 64
    out_channels: Size = 64
    num_layers: Count = 19
    num_single_layers: Count = 38
    attention_head_dim: Size = 128
    num_attention_heads: Size = 24
    joint_attention_dim: Size = 4096
    pooled_projection_dim: Size = 768
    guidance_embeds: Flag = False
    axes_dims_rope: tuple[Size, ...] = (16, 56, 56)

    @property
    def mlp_features(self) -> int:
        """Hidden features of a feed-forward, and of a single block's MLP."""
        return 4 * self.features

    def double_block(self) -> DoubleStreamShape:
        """Return what a double block is made of."""
        d = self.features
        return DoubleStreamShape(
            self.num_attention_heads,
            self.attention_head_dim,
            d,
            (
                ModulationShape("norm1.linear", d),
                ModulationShape("norm1_context.linear", d, chunks("prompt.attn", "prompt.ff")),
            ),
            spatial=StreamShape(d, self.mlp_features, norms=("norm1.norm", "norm2")),
            prompt=StreamShape(
                d, self.mlp_features, PROMPT_NAMES, ("norm1_context.norm", "norm2_context"), "ff_context"
            ),
        )

    def single_block(self) -> SingleStreamShape:
        """Return what a single block is made of."""
        d = self.features
        modulations = (ModulationShape("norm.linear", d, chunks("attn")),)
        heads = (self.num_attention_heads, self.attention_head_dim)
        return SingleStreamShape(*heads, d, modulations, features=d, hidden=self.mlp_features)
