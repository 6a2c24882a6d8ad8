"""Configuration of CogVideoX's autoencoder, as diffusers' ``AutoencoderKLCogVideoX`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.schema import Flag, Positive, Size, check, read
from refsim.models.vae.config import check_stages


@dataclass(frozen=True)
class CogVideoXVAEConfig:
    """Keys of diffusers' config.json that the decoder needs."""

    latent_channels: Size = 16
    out_channels: Size = 3
    block_out_channels: tuple[Size, ...] = (128, 256, 256, 512)
    layers_per_block: Size = 3
    norm_num_groups: Size = 32
    temporal_compression_ratio: Size = 4
    scaling_factor: Positive = 1.15258426

    @property
    def ratios(self) -> tuple[int, int]:
        """Return the frames and the pixels per latent frame and row."""
        return self.temporal_compression_ratio, self.scale

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
        if check(Flag | None, config.get("use_post_quant_conv"), "use_post_quant_conv"):
            raise UserError("config.json has use_post_quant_conv, with which diffusers' own decoder does not run.")
        check(Literal["silu", "swish"], config.get("act_fn", "silu"), "act_fn")
        ratio = config.get("temporal_compression_ratio")
        if isinstance(ratio, float) and ratio.is_integer():  # diffusers' own default is 4.0
            config = config | {"temporal_compression_ratio": int(ratio)}
        result = read(cls, config)
        check_stages(result.block_out_channels)
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
