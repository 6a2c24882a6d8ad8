"""What goes into CogVideoX's blocks: patches of every frame, positions as a table or as a rotation, the time step.

    2b  a sincos table is added to the tokens: [time D/4 | width 3D/8 | height 3D/8], each [sin, cos]
    5b  queries and keys of video tokens are turned: head features [time E/4 | height 3E/8 | width 3E/8]
    1.5 as 5b, a patch being patch_size_t frames deep

A member of sp makes the positions of its own tokens only.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import Grid, VideoPatches
from refsim.layers.rope import rotary_angles, token_positions
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.parallel.padding import padded_features
from refsim.parallel.sequence import TokenShards
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor


class CogVideoXPatches(VideoPatches):
    """Patches of a video, their positions added where they are a table (2b); frames come before channels."""

    def __init__(self, weights: Weights, device: Device, config: CogVideoXConfig) -> None:
        self._config = config
        sizes = {"in_features": config.patch_features, "features": config.features}
        super().__init__(weights, device, "patch_embed.proj", patch=config.patch, **sizes)

    def __call__(self, latent_BFCHW: Tensor, tokens: TokenShards) -> MeshTensor:
        """Map latent on the host to (B, local N, local D), sp=Shard(1), tp=Shard(-1)."""
        latent_BCTHW = latent_BFCHW.transpose(1, 2)
        embedded = super().__call__(latent_BCTHW, tokens)
        if self._config.use_rotary_positional_embeddings:
            return embedded
        table = self._table(self.grid(latent_BCTHW.shape[2:]), tokens, self._device.groups["sp"].index)
        return embedded.map("positional table", lambda y: y + table.to(y.dtype))

    def _table(self, grid: Grid, tokens: TokenShards, shard: int) -> Tensor:
        """Return the positions (local N, local D) in fp32, zero in padding."""
        config = self._config
        d = self._config.features
        tp = self._device.groups["tp"]
        span = tokens.tokens(shard)
        t, y, x = token_positions(grid, span)
        scaled = (
            t / config.temporal_interpolation_scale,
            x / config.spatial_interpolation_scale,
            y / config.spatial_interpolation_scale,
        )
        sizes = (d // 4, 3 * d // 8, 3 * d // 8)
        angles = rotary_angles(scaled, sizes).split([n // 2 for n in sizes], -1)
        table = torch.cat([part for a in angles for part in (a.sin(), a.cos())], -1).float()
        padded = padded_features(d, tp.size)
        table = F.pad(table, (0, padded - d, 0, tokens.local_n - (span[1] - span[0])))
        return table[:, slice(*shard_range(padded, tp))]

    def unpatchify(self, out_BNP: Tensor, grid: Grid) -> Tensor:
        """Map (B, N, C * deep * p * p) with the channel outermost to (B, F, C, H, W)."""
        patches_BNCP = out_BNP.unflatten(2, (self._config.out_channels, -1))
        return super().unpatchify(patches_BNCP.transpose(2, 3).flatten(2), grid).transpose(1, 2).contiguous()


def sequences_of(device: Device, config: CogVideoXConfig, grid: Grid, text: int) -> Sequences:
    """Cut the tokens of a grid and ``text`` of the prompt; only the video is turned by its positions."""
    sequences = Sequences.of(device, math.prod(grid), text)
    return replace(sequences, rotary=rotary_tables(config, grid, sequences.tokens, device.groups["sp"].index))


def rotary_tables(config: CogVideoXConfig, grid: Grid, tokens: TokenShards, shard: int) -> tuple[Tensor, Tensor] | None:
    """Return (cos, sin) of this shard's tokens, (local N, E / 2) in fp32, 0 in padding; None for a model with a table.

    Another grid than the trained one is stretched over it and centred, as in diffusers; 1.5 counts from the corner.
    """
    if not config.use_rotary_positional_embeddings:
        return None
    span = tokens.tokens(shard)
    t, y, x = token_positions(grid, span)
    if config.patch_size_t is None:
        rows, columns = _stretched(grid[1:], (config.sample_height, config.sample_width), config.patch_size)
        y = rows[y]
        x = columns[x]
    e = config.attention_head_dim
    angles = rotary_angles((t, y, x), (e // 4, 3 * e // 8, 3 * e // 8))
    padding = (0, 0, 0, tokens.local_n - (span[1] - span[0]))
    return F.pad(angles.cos().float(), padding), F.pad(angles.sin().float(), padding)


def _stretched(grid: tuple[int, int], sample: tuple[int, int], patch: int) -> tuple[Tensor, Tensor]:
    """Return the positions of rows and columns: the grid resized to fit the trained one, shape kept, and centred."""
    h, w = grid
    th = sample[0] // patch
    tw = sample[1] // patch
    if h / w > th / tw:
        size = (th, round(th / h * w))
    else:
        size = (round(tw / w * h), tw)
    positions = []
    for n, whole, part in zip(grid, (th, tw), size, strict=True):
        start = round((whole - part) / 2.0)
        stop = start + part
        positions.append(torch.linspace(start, stop * (n - 1) / n, n, dtype=torch.float32).double())
    return positions[0], positions[1]
