"""Configuration of CogVideoX's autoencoder, as diffusers' ``AutoencoderKLCogVideoX`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError


@dataclass(frozen=True)
class CogVideoXVAEConfig:
    """Keys of diffusers' config.json that the decoder needs."""

    latent_channels: int = 16
    out_channels: int = 3
    block_out_channels: tuple[int, ...] = (128, 256, 256, 512)
    layers_per_block: int = 3
    norm_num_groups: int = 32
    temporal_compression_ratio: int = 4
    scaling_factor: float = 1.15258426

    @property
    def scale(self) -> int:
        """Return the pixels per latent row."""
        return 2 ** (len(self.block_out_channels) - 1)

    @property
    def doublings(self) -> int:
        """Return how many of the first up blocks double the time."""
        return self.temporal_compression_ratio.bit_length() - 1

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> CogVideoXVAEConfig:
        """Read a parsed config.json; ``UserError`` for a value this decoder cannot have."""
        if config.get("use_post_quant_conv"):
            raise UserError("config.json has use_post_quant_conv, with which diffusers' own decoder does not run.")
        if config.get("act_fn", "silu") not in ("silu", "swish"):
            raise UserError(f"config.json has act_fn {config['act_fn']!r}; silu is supported.")
        known = {f.name for f in fields(cls)}
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k in known}
        ratio = given.get("temporal_compression_ratio", 4)
        if isinstance(ratio, float) and ratio.is_integer():
            given["temporal_compression_ratio"] = int(ratio)
        result = cls(**given)
        widths = result.block_out_channels
        if not isinstance(widths, tuple) or not widths:
            raise UserError(f"config.json has block_out_channels = {widths!r}; it must be a list of channel counts.")
        counts = {f.name: getattr(result, f.name) for f in fields(cls) if f.type == "int"}
        for name, value in [("block_out_channels", width) for width in widths] + [*counts.items()]:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"config.json has {value!r} in {name}; whole numbers above 0 are needed.")
        scale = result.scaling_factor
        if not isinstance(scale, float | int) or isinstance(scale, bool) or not scale > 0:
            raise UserError(f"config.json has scaling_factor = {scale!r}; a number above 0 is needed.")
        ratio = result.temporal_compression_ratio
        if ratio & (ratio - 1) or result.doublings >= len(result.block_out_channels):
            raise UserError(
                f"config.json has temporal_compression_ratio = {ratio}; a power of 2 up to "
                f"{2 ** (len(result.block_out_channels) - 1)} is needed."
            )
        wrong = [c for c in result.block_out_channels if c % result.norm_num_groups]
        if wrong:
            raise UserError(
                f"config.json has {wrong[0]} in block_out_channels, which does not divide into norm_num_groups = "
                f"{result.norm_num_groups}."
            )
        return result
