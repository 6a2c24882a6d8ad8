"""What goes into Mochi's blocks: patches of every frame, learned rotations, the time step with the pooled prompt.

    rotation   angle of a pair of head h at (t, y, x) = t * f[0, h] + y * f[1, h] + x * f[2, h], f learned
               t counts frames; y and x are centres of patches, the picture centred and stretched to 192 * 192 of area
    pooling    the mean of a prompt's valid tokens asks it and them, 8 heads; projected, and added to the time step

A member of sp makes the rotations of its own tokens, a member of tp those of its own heads.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import Grid, TimestepEmbedding
from refsim.layers.linear import Linear
from refsim.models.mochi.config import POOL_HEADS, MochiConfig
from refsim.parallel.padding import padded_heads
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device

_AREA = 192 * 192


def sequences_of(device: Device, frequencies_3HP: Tensor, grid: Grid, mask_BL: Tensor) -> Sequences:
    """Cut a video of ``grid`` and prompts with this mask; tables are of this member's tokens and heads, all in fp32.

    Args:
        frequencies_3HP: of all heads, how fast a pair turns along each axis.
    """
    sequences = Sequences.of(device, math.prod(grid), mask_BL.shape[1])
    tp = device.groups["tp"]
    heads = frequencies_3HP.shape[1]
    padded = padded_heads(heads, tp.size)
    mine_3HP = F.pad(frequencies_3HP.float(), (0, 0, 0, padded - heads))[:, slice(*shard_range(padded, tp))]
    positions_N3 = sequences.tokens.cut(positions(grid), device.groups["sp"].index, dim=0)
    angles_HNP = torch.einsum("nd,dhp->hnp", positions_N3.to(mine_3HP.device), mine_3HP)
    return replace(sequences, rotary=(angles_HNP.cos(), angles_HNP.sin()), prompt_mask=mask_BL)


def positions(grid: Grid) -> Tensor:
    """Return (t, y, x) of all tokens of a grid (frames, rows, columns), (N, 3) in fp32, t slowest."""
    frames, rows, columns = grid
    scale = (_AREA / (rows * columns)) ** 0.5
    axes = [torch.arange(frames, dtype=torch.float32)]
    for size in (rows, columns):
        edges = torch.linspace(-size * scale / 2, size * scale / 2, size + 1)
        axes.append((edges[:-1] + edges[1:]) / 2)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 2)


class Conditioning:
    """``time_embed``: the time step through two linears plus the pooled prompt, on every device."""

    def __init__(self, weights: Weights, config: MochiConfig) -> None:
        name = "time_embed"
        text = config.text_embed_dim
        sizes = {"features": config.features, "width": config.time_embed_dim}
        self._time = TimestepEmbedding(weights, f"{name}.timestep_embedder", **sizes)
        self._kv, self._q, self._out = (
            Linear(weights, f"{name}.pooler.{part}", in_features=text, out_features=features)
            for part, features in (("to_kv", 2 * text), ("to_q", text), ("to_out", config.features))
        )

    def __call__(self, timestep_B: Tensor, prompt_BLT: Tensor, mask_BL: Tensor) -> Tensor:
        """Map a time step in 0..1000 and a prompt, of which ``mask_BL`` (bool) says what is valid, to (B, D)."""
        return self._time(timestep_B, prompt_BLT.dtype) + self._pooled(prompt_BLT, mask_BL)

    def _pooled(self, prompt_BLT: Tensor, mask_BL: Tensor) -> Tensor:
        valid_B1L = mask_BL[:, None].to(prompt_BLT.dtype)
        count_B11 = valid_B1L @ valid_B1L.transpose(1, 2)
        mean_B1T = valid_B1L / count_B11.clamp(min=1) @ prompt_BLT
        heads = (POOL_HEADS, -1)
        kv = self._kv(torch.cat([mean_B1T, prompt_BLT], 1)).unflatten(2, (2, *heads))
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, 1 + L, T / heads)
        q = self._q(mean_B1T).unflatten(2, heads).transpose(1, 2)
        keys = F.pad(mask_BL, (1, 0), value=True)[:, None, None]
        return self._out(F.scaled_dot_product_attention(q, k, v, attn_mask=keys).transpose(1, 2).flatten(1))
