"""What the configurations of models have in common whose blocks are the shared ones, for both backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from refsim.base.errors import UserError
from refsim.base.schema import Count, Size, check_fixed, read
from refsim.blocks.shape import DoubleStreamShape, SingleStreamShape

Config = TypeVar("Config", bound="BlocksConfig")


@dataclass(frozen=True)
class BlocksConfig:
    """Keys of diffusers' config.json that all of these models have; their defaults are in each.

    Attributes:
        FIXED: keys that a config.json may have, but with this value alone.
    """

    patch_size: Size
    in_channels: Size
    out_channels: Size
    num_layers: Count
    attention_head_dim: Size
    num_attention_heads: Size
    FIXED: ClassVar[dict[str, Any]] = {}

    @property
    def features(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def block_count(self) -> int:
        return self.num_layers

    def block(self, index: int) -> DoubleStreamShape | SingleStreamShape:
        """Return what block ``index`` is made of, in the order they run; every model says so."""
        raise NotImplementedError

    def block_name(self, index: int) -> str:
        """Return what the names of a block's weights begin with, without the dot."""
        return f"transformer_blocks.{index}"

    def check(self) -> None:
        """Raise ``UserError`` for values that do not go together."""

    @classmethod
    def from_dict(cls: type[Config], config: dict[str, Any]) -> Config:
        """Read a parsed config.json; ``out_channels`` that are null or left out are as many as ``in_channels``.

        Raises:
            UserError: a value this model cannot have.
        """
        if config.get("out_channels") is None:
            config = config | {"out_channels": config.get("in_channels", cls.in_channels)}
        result = read(cls, config)
        check_fixed(config, cls.FIXED)
        result.check()
        return result


def check_rotary_axes(axes: tuple[int, ...], head_dim: int, needed: str = "even numbers") -> None:
    """Raise ``UserError`` if the features of a head that each axis turns are odd or do not add up to a head's."""
    if sum(axes) != head_dim or any(n % 2 for n in axes):
        raise UserError(
            f"config.json has axes_dims_rope = {list(axes)}; {needed} are needed that add up to attention_head_dim, "
            f"which is {head_dim}."
        )
