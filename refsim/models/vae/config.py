"""Configuration of an image autoencoder, as diffusers writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from refsim.base.errors import UserError
from refsim.base.schema import Flag, Positive, Real, Size, check_fixed, read
from refsim.models.vae.spec import CLASS_NAME

_MOST_STAGES = 16
"""Each but the last doubles the picture; more would make pixels of a single latent that no machine can hold."""


@dataclass(frozen=True)
class VAEConfig:
    """Keys of diffusers' config.json that the decoder needs (Stable Diffusion 3.5: 16 latent channels, 128 to 512)."""

    latent_channels: Size = 4
    out_channels: Size = 3
    block_out_channels: tuple[Size, ...] = (64,)
    layers_per_block: Size = 1
    norm_num_groups: Size = 32
    scaling_factor: Positive = 0.18215
    shift_factor: Real = 0.0
    use_post_quant_conv: Flag = True
    mid_block_add_attention: Flag = True
    class_name: ClassVar[str] = CLASS_NAME
    left_aside: ClassVar[tuple[str, ...]] = ("encoder.", "quant_conv.")
    """What names of weights begin with that decoding does without."""

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> VAEConfig:
        """Read a parsed config.json; ``UserError`` for a value this decoder cannot have."""
        result = read(cls, config, may_be_null=("shift_factor",))
        check_fixed(config, {"act_fn": "silu"})
        check_stages(result.widths)
        if any(width % result.norm_num_groups for width in result.widths):
            raise UserError(
                f"config.json has {result.norm_num_groups} norm groups, which do not divide every one of "
                f"{', '.join(map(str, result.widths))} channels."
            )
        return result

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the channels of the decoder's stages, those at the picture first."""
        return self.block_out_channels

    @property
    def ratios(self) -> tuple[int, int]:
        """Return the frames and the pixels per latent frame and row."""
        return 1, self.scale

    @property
    def scale(self) -> int:
        """Return the pixels per latent row."""
        return 2 ** (len(self.widths) - 1)


def check_stages(widths: tuple[int, ...], name: str = "block_out_channels") -> None:
    """Raise ``UserError`` for a list of channels without entries, or with more than any picture can be doubled."""
    if not 1 <= len(widths) <= _MOST_STAGES:
        raise UserError(
            f"config.json has {len(widths)} entries in {name}; it must be a list of 1 to {_MOST_STAGES} channel counts."
        )
