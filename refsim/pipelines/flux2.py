"""FLUX.2: prompt and noise in, a picture out.

    prompt --chat template, Mistral 3 (host, by transformers)--> three hidden states side by side (L, joint), at 0 .. L
    noise (128, h, w): a channel for each place of a 2 x 2 patch of latents --> N = h * w tokens, at rows and columns
    time steps: shifted by how many tokens the picture has, and by how many steps there are

Guidance is an input of the transformer, so one sample runs and there is no negative prompt.

Counterpart: diffusers' ``Flux2Pipeline``, without reference images.
"""

from __future__ import annotations

from pathlib import Path

from refsim.models.flux2.transformer import Flux2Transformer
from refsim.models.vae.decoder import VAEDecoder
from refsim.pipelines.hosts.flux2 import Flux2Host
from refsim.pipelines.pipeline import Pipeline, check_fit, check_part
from refsim.runtime.device import Device


class Flux2Pipeline(Flux2Host, Pipeline):
    """Dev."""

    transformer = Flux2Transformer

    def check(self, root: Path, device: Device) -> None:
        """See :meth:`Pipeline.check`."""
        config = check_part(device, root, "transformer", self.transformer)
        vae = check_part(device, root, "vae", VAEDecoder)
        wanted = ("in_channels", config.in_channels, "four times latent_channels of vae", 4 * vae.latent_channels)
        check_fit(root, "transformer", [wanted])
