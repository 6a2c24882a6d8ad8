"""Configuration of Wan's autoencoder, as diffusers' ``AutoencoderKLWan`` and ``AutoencoderKLQwenImage`` write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refsim.base.errors import UserError
from refsim.base.schema import Flag, Positive, Real, Size, check, read
from refsim.models.vae.config import check_stages


@dataclass(frozen=True)
class WanVAEConfig:
    """Keys of diffusers' config.json that the decoder needs.

    ``temperal_downsample`` (diffusers' spelling) says per encoder stage whether time is halved; the decoder doubles
    it in the reverse order.
    """

    base_dim: Size = 96
    z_dim: Size = 16
    dim_mult: tuple[Size, ...] = (1, 2, 4, 4)
    num_res_blocks: Size = 2
    temperal_downsample: tuple[Flag, ...] = (False, True, True)
    latents_mean: tuple[Real, ...] = ()
    latents_std: tuple[Positive, ...] = ()
    out_channels: Size = 3

    @property
    def scale_factor_temporal(self) -> int:
        """Return the frames per latent frame that the stages make."""
        return 2 ** sum(self.temperal_downsample)

    @property
    def scale_factor_spatial(self) -> int:
        """Return the pixels per latent row that the stages make."""
        return 2 ** (len(self.dim_mult) - 1)

    @property
    def ratios(self) -> tuple[int, int]:
        """Return the frames and the pixels per latent frame and row."""
        return self.scale_factor_temporal, self.scale_factor_spatial

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> WanVAEConfig:
        """Read a parsed config.json; ``UserError`` for a value this decoder cannot have."""
        if check(Flag | None, config.get("is_residual"), "is_residual") or config.get("patch_size") is not None:
            raise UserError(
                "config.json is that of the TI2V-5B autoencoder; that of T2V-A14B (Wan2.1 VAE) is supported."
            )
        if config.get("decoder_base_dim") is not None:
            config = config | {"base_dim": check(Size, config["decoder_base_dim"], "decoder_base_dim")}
        if config.get("input_channels") is not None:  # Qwen-Image's name, also for what comes out
            config = config | {"out_channels": config["input_channels"]}
        result = read(cls, config)
        check_stages(result.dim_mult, "dim_mult")
        for name in ("scale_factor_spatial", "scale_factor_temporal"):
            doubled = getattr(result, name)
            if config.get(name, doubled) != doubled:
                raise UserError(f"config.json has {name} = {config[name]}, but its stages make {doubled} of one.")
        if len(result.temperal_downsample) != len(result.dim_mult) - 1:
            raise UserError(
                f"config.json has {len(result.dim_mult)} entries in dim_mult and {len(result.temperal_downsample)} in "
                "temperal_downsample; one fewer is needed."
            )
        for name in ("latents_mean", "latents_std"):
            if len(getattr(result, name)) != result.z_dim:
                raise UserError(f"config.json has {len(getattr(result, name))} values in {name}, not {result.z_dim}.")
        return result
