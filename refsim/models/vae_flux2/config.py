"""Configuration of FLUX.2's autoencoder, as diffusers' ``AutoencoderKLFlux2`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from refsim.base.schema import Positive, Size
from refsim.models.vae.config import VAEConfig
from refsim.models.vae_flux2.spec import CLASS_NAME


@dataclass(frozen=True)
class Flux2VAEConfig(VAEConfig):
    """Keys of diffusers' config.json that decoding needs; the decoder is that of other pictures, with its own widths.

    What scales latents are the running statistics of a batch norm over patches, which the pipeline applies.

    Attributes:
        decoder_block_out_channels: where the decoder is not as wide as the encoder (the small one).
        batch_norm_eps: added to the running variance.
        patch_size: rows and columns of latents whose channels are one patch's.
    """

    latent_channels: Size = 32
    block_out_channels: tuple[Size, ...] = (128, 256, 512, 512)
    decoder_block_out_channels: tuple[Size, ...] | None = None
    layers_per_block: Size = 2
    batch_norm_eps: Positive = 1e-4
    patch_size: tuple[Size, Size] = (2, 2)
    class_name: ClassVar[str] = CLASS_NAME
    left_aside: ClassVar[tuple[str, ...]] = (*VAEConfig.left_aside, "bn.")

    @property
    def widths(self) -> tuple[int, ...]:
        other = self.decoder_block_out_channels
        return self.block_out_channels if other is None else other
