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

from refsim.base.errors import UserError
from refsim.blocks.sequences import Sequences
from refsim.files.checkpoint import Weights
from refsim.layers.embeddings import TwoLinears, timestep_embedding
from refsim.layers.linear import ColParallelLinear
from refsim.layers.rope import rotary_angles, token_positions
from refsim.models.cogvideox.config import CogVideoXConfig
from refsim.parallel.padding import padded_features
from refsim.parallel.sequence import TokenShards, cut_tokens
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device
from refsim.runtime.tensor import MeshTensor

Grid = tuple[int, int, int]


class VideoPatches:
    """The convolution over patches as a column-parallel linear on this member's tokens, and back."""

    def __init__(self, weights: Weights, device: Device, config: CogVideoXConfig) -> None:
        self._device = device
        self._config = config
        c = config.in_channels
        p = config.patch_size
        self._deep = config.patch_size_t or 1
        self._proj = ColParallelLinear(
            weights,
            device,
            "patch_embed.proj",
            in_features=c * self._deep * p * p if config.patch_size_t else (c, p, p),
            out_features=config.features,
        )

    def grid(self, size: tuple[int, ...]) -> Grid:
        """Return the patches (deep, high, wide) of a latent (frames, channels, height, width)."""
        frames, _, height, width = size
        p = self._config.patch_size
        if height % p or width % p:
            raise UserError(f"a latent of {height}x{width} does not divide into {p}x{p} patches; pad or crop it.")
        if frames % self._deep:
            raise UserError(
                f"a latent of {frames} frames does not divide into patches {self._deep} frames deep; pad it."
            )
        return frames // self._deep, height // p, width // p

    def __call__(self, latent_BFCHW: Tensor, tokens: TokenShards, shard: int) -> MeshTensor:
        """Map latent on the host to (B, local N, local D), sp=Shard(1), tp=Shard(-1), positions of 2b added."""
        t, h, w = self.grid(latent_BFCHW.shape[1:])
        p = self._config.patch_size
        x = latent_BFCHW.unflatten(4, (w, p)).unflatten(3, (h, p)).unflatten(1, (t, self._deep))
        patches_BNP = x.permute(0, 1, 4, 6, 3, 2, 5, 7).flatten(4).flatten(1, 3)  # (B, t h w, C deep p p)
        embedded = self._proj(cut_tokens(self._device, MeshTensor(patches_BNP), tokens, dim=1))
        if self._config.use_rotary_positional_embeddings:
            return embedded
        table = self._table(self.grid(latent_BFCHW.shape[1:]), tokens, shard)
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
        p = self._config.patch_size
        x = out_BNP.unflatten(2, (-1, self._deep, p, p)).unflatten(1, grid)  # (B, t, h, w, C, deep, p, p)
        return x.permute(0, 1, 5, 4, 2, 6, 3, 7).flatten(6).flatten(4, 5).flatten(1, 2).contiguous()


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


class TimeEmbedding:
    """The time step through two linears, replicated on every device; or ``ofs``, which 1.5 adds to it."""

    def __init__(self, weights: Weights, config: CogVideoXConfig, ofs: bool = False) -> None:
        wide = config.time_embed_dim
        name, self._features = ("ofs_embedding", wide) if ofs else ("time_embedding", config.features)
        self._linears = TwoLinears(weights, name, in_features=self._features, features=wide)

    def __call__(self, timestep_B: Tensor, dtype: torch.dtype) -> Tensor:
        """Map (B,) in 0..1000 to (B, time_embed_dim)."""
        return self._linears(timestep_embedding(timestep_B, self._features).to(dtype))
