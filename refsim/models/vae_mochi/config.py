"""Configuration of Mochi's autoencoder, as diffusers' ``AutoencoderKLMochi`` writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from refsim.base.errors import UserError
from refsim.base.schema import Count, Positive, Real, Size, check, read
from refsim.models.vae.config import check_stages

GROUPS = 32
"""Of channels that are normed together; diffusers has the number in its code, and this:"""
EPS = 1e-5
_MEAN = (-0.06730895953510081, -0.038011381506090416, -0.07477820912866141, -0.05565264470995561)
_MEAN += (0.012767231469026969, -0.04703542746246419, 0.043896967884726704, -0.09346305707025976)
_MEAN += (-0.09918314763016893, -0.008729793427399178, -0.011931556316503654, -0.0321993391887285)
_STD = (0.9263795028493863, 0.9248894543193766, 0.9393059390890617, 0.959253732819592)
_STD += (0.8244560132752793, 0.917259975397747, 0.9294154431013696, 1.3720942357788521)
_STD += (0.881393668867029, 0.9168315692124348, 0.9185249279345552, 0.9274757570805041)


_CHUNK = 2  # latent frames


def chunks(frames: int) -> list[int]:
    """Return how many of so many latent frames are decoded at a time; the first chunk takes one that is left over."""
    first = min(frames, _CHUNK + frames % _CHUNK)
    return [first, *[_CHUNK] * ((frames - first) // _CHUNK)]


@dataclass(frozen=True)
class MochiVAEConfig:
    """Keys of diffusers' config.json that the decoder needs.

    Lists are the encoder's, from pixels to latents; the decoder runs them backwards. ``layers_per_block`` has one entry
    more than there are widths: the blocks at the latents come before those that enlarge.
    """

    latent_channels: Size = 12
    out_channels: Size = 3
    decoder_block_out_channels: tuple[Size, ...] = (128, 256, 512, 768)
    layers_per_block: tuple[Count, ...] = (3, 3, 4, 6, 3)
    temporal_expansions: tuple[Size, ...] = (1, 2, 3)
    spatial_expansions: tuple[Size, ...] = (2, 2, 2)
    latents_mean: tuple[Real, ...] = _MEAN
    latents_std: tuple[Positive, ...] = _STD
    scaling_factor: Positive = 1.0

    @property
    def ratios(self) -> tuple[int, int]:
        """Return the frames and the pixels per latent frame and row."""
        return math.prod(self.temporal_expansions), math.prod(self.spatial_expansions)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> MochiVAEConfig:
        """Read a parsed config.json; ``UserError`` for a value this decoder cannot have."""
        check(Literal["silu", "swish"], config.get("act_fn", "silu"), "act_fn")
        result = read(cls, config)
        widths = result.decoder_block_out_channels
        check_stages(widths, "decoder_block_out_channels")
        stages = len(widths) - 1
        lengths = {"layers_per_block": stages + 2, "temporal_expansions": stages, "spatial_expansions": stages}
        lengths |= dict.fromkeys(("latents_mean", "latents_std"), result.latent_channels)
        for name, length in lengths.items():
            if len(getattr(result, name)) != length:
                raise UserError(f"config.json has {len(getattr(result, name))} entries in {name}; {length} are needed.")
        if wrong := [width for width in widths if width % GROUPS]:
            raise UserError(
                f"config.json has {wrong[0]} in decoder_block_out_channels, which does not divide into {GROUPS} groups."
            )
        return result
