"""Rank programs of the text encoders' tests."""

from __future__ import annotations

import torch

from refsim.checkpoint import Checkpoint, Weights
from refsim.models.t5.config import T5Config
from refsim.models.t5.encoder import T5Encoder


def encode(device, *, folder: str, ids: list, mask: list):
    """``out`` (B, L, D) of a T5 or UMT5 folder."""
    checkpoint = Checkpoint(folder)
    encoder = T5Encoder(Weights(checkpoint, torch.float32), device, T5Config.from_dict(checkpoint.config))
    return {}, {"out": encoder(torch.tensor(ids), torch.tensor(mask))}
