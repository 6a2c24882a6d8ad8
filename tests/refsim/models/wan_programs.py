"""Rank programs of the Wan tests."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from refsim.checkpoint import Checkpoint, Weights
from refsim.models.vae_wan.config import WanVAEConfig
from refsim.models.vae_wan.decoder import WanVAEDecoder
from refsim.pipelines.transformer import digest


def decode(device, *, checkpoint: str, inputs: str):
    """``frames`` of the ``latent`` in a file."""
    folder = Checkpoint(checkpoint)
    decoder = WanVAEDecoder(Weights(folder, torch.float32), device, WanVAEConfig.from_dict(folder.config))
    frames = decoder(load_file(inputs)["latent"])
    return {"digest": digest(frames)}, {"frames": frames}
