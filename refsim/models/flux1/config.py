"""Configuration of the Flux.1 transformer, as diffusers' ``FluxTransformer2DModel`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from refsim.base.errors import UserError
from refsim.base.schema import Count, Flag, Size, read
from refsim.blocks.shape import PROMPT_NAMES, DoubleStreamShape, ModulationShape, SingleStreamShape, StreamShape, chunks


class FluxBlocks(Protocol):
    """What blocks and rotary tables read of a configuration, Flux.1's or FLUX.2's."""

    @property
    def num_layers(self) -> int: ...
    @property
    def axes_dims_rope(self) -> tuple[int, ...]: ...
    @property
    def rope_theta(self) -> float: ...
    def block_name(self, index: int) -> str: ...
    def double_block(self) -> DoubleStreamShape: ...
    def single_block(self) -> SingleStreamShape: ...


@dataclass(frozen=True)
class FluxConfig:
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
    rope_theta: ClassVar[float] = 10000.0

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def mlp_features(self) -> int:
        """Hidden features of a feed-forward, and of a single block's MLP."""
        return 4 * self.features

    def block_name(self, index: int) -> str:
        """Return what the names of a block's weights begin with; single ones are counted on from the double ones."""
        if index < self.num_layers:
            return f"transformer_blocks.{index}"
        return f"single_transformer_blocks.{index - self.num_layers}"

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

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> FluxConfig:
        """From a parsed config.json; ``UserError`` for a value this model cannot have."""
        if config.get("out_channels") is None:
            config = config | {"out_channels": config.get("in_channels", cls.in_channels)}
        result = read(cls, config)
        if not result.num_layers + result.num_single_layers:
            raise UserError("config.json has no blocks; num_layers or num_single_layers must be above 0.")
        if sum(result.axes_dims_rope) != result.attention_head_dim or any(n % 2 for n in result.axes_dims_rope):
            raise UserError(
                f"config.json has axes_dims_rope = {list(result.axes_dims_rope)}; even numbers are needed that add up "
                f"to attention_head_dim, which is {result.attention_head_dim}."
            )
        return result
