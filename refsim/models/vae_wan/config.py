"""Configuration of Wan's autoencoder, as diffusers' ``AutoencoderKLWan`` writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from refsim.errors import UserError


@dataclass(frozen=True)
class WanVAEConfig:
    """Keys of diffusers' config.json that the decoder needs.

    ``temperal_downsample`` (diffusers' spelling) says per encoder stage whether time is halved; the decoder doubles
    it in the reverse order.
    """

    base_dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    latents_mean: tuple[float, ...] = ()
    latents_std: tuple[float, ...] = ()
    out_channels: int = 3

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> WanVAEConfig:
        """Read a parsed config.json; ``UserError`` for a value this decoder cannot have."""
        if config.get("is_residual") or config.get("patch_size") is not None:
            raise UserError(
                "config.json is that of the TI2V-5B autoencoder; that of T2V-A14B (Wan2.1 VAE) is supported."
            )
        known = {f.name for f in fields(cls)}
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k in known}
        if config.get("decoder_base_dim") is not None:
            given["base_dim"] = config["decoder_base_dim"]
        result = cls(**given)
        for name in ("base_dim", "z_dim", "dim_mult", "num_res_blocks", "out_channels"):
            value = getattr(result, name)
            for n in value if name == "dim_mult" else (value,):
                if not isinstance(n, int) or isinstance(n, bool) or n < 1:
                    raise UserError(f"config.json has {name} = {value!r}; whole numbers above 0 are needed.")
        if len(result.temperal_downsample) != len(result.dim_mult) - 1:
            raise UserError(
                f"config.json has {len(result.dim_mult)} entries in dim_mult and {len(result.temperal_downsample)} in "
                "temperal_downsample; one fewer is needed."
            )
        for name in ("latents_mean", "latents_std"):
            if len(getattr(result, name)) != result.z_dim:
                raise UserError(f"config.json has {len(getattr(result, name))} values in {name}, not {result.z_dim}.")
        return result
