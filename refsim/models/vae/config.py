"""Configuration of an image autoencoder, as diffusers writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.errors import UserError


@dataclass(frozen=True)
class VAEConfig:
    """Keys of diffusers' config.json that the decoder needs (Stable Diffusion 3.5: 16 latent channels, 128 to 512)."""

    latent_channels: int = 4
    out_channels: int = 3
    block_out_channels: tuple[int, ...] = (64,)
    layers_per_block: int = 1
    norm_num_groups: int = 32
    scaling_factor: float = 0.18215
    shift_factor: float = 0.0
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> VAEConfig:
        """Read a parsed config.json; ``UserError`` for a value this decoder cannot have."""
        given = {name: config[name] for name in cls.__dataclass_fields__ if config.get(name) is not None}
        widths = given.get("block_out_channels", (64,))
        counts = [given.get(n, 1) for n in ("latent_channels", "out_channels", "layers_per_block", "norm_num_groups")]
        if not isinstance(widths, (list, tuple)) or not widths:
            raise UserError(f"config.json has block_out_channels = {widths!r}; it must be a list of channel counts.")
        for value in (*widths, *counts):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"config.json has the size {value!r}; it must be a whole number above 0.")
        result = cls(**given | {"block_out_channels": tuple(widths)})
        if any(width % result.norm_num_groups for width in result.block_out_channels):
            raise UserError(
                f"config.json has {result.norm_num_groups} norm groups, which do not divide every one of "
                f"{', '.join(map(str, result.block_out_channels))} channels."
            )
        return result

    @property
    def scale(self) -> int:
        """Return the pixels per latent row."""
        return 2 ** (len(self.block_out_channels) - 1)
