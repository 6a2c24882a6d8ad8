"""Patches of every frame, positions as a table or as a rotation; counterpart of ``refsim.models.cogvideox.embeddings``.

    2b  a sincos table is added to the tokens: [time D/4 | width 3D/8 | height 3D/8], each [sin, cos]
    5b  queries and keys of video tokens are turned: head features [time E/4 | height 3E/8 | width 3E/8]
    1.5 as 5b, a patch being patch_size_t frames deep

Patches and positions of all tokens are made on the host, which cuts them over sp.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.cogvideox.config import CogVideoXConfig
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.embeddings import Grid, VideoPatches
from tt_impl.layers.linear import pad_to
from tt_impl.layers.rope import PairTables, pair_rotary, rotary_angles, token_positions
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features, padded_tokens
from tt_impl.parallel.sequence import put_tokens


class CogVideoXPatches(VideoPatches):
    """Patches of a video, their positions added where they are a table (2b); frames come before channels."""

    def __init__(self, weights: Weights, ctx: Context, config: CogVideoXConfig) -> None:
        self._config = config
        sizes = {"in_features": config.patch_features, "features": config.features}
        super().__init__(weights, ctx, "patch_embed.proj", patch=config.patch, **sizes)

    def __call__(self, latent_BFCHW: torch.Tensor) -> ttnn.Tensor:
        """Latent on the host -> (B, 1, local N, local D)."""
        latent_BCTHW = latent_BFCHW.transpose(1, 2)
        embedded = super().__call__(latent_BCTHW)
        if self._config.use_rotary_positional_embeddings:
            return embedded
        table_ND = self._table(self.grid(tuple(latent_BCTHW.shape[2:])))
        return ttnn.add(embedded, put_tokens(self._ctx, table_ND[None], tp_dim=3))

    def _table(self, grid: Grid) -> torch.Tensor:
        """Positions (N, D), zero in features of padding."""
        config = self._config
        d = self._config.features
        t, y, x = token_positions(grid, (0, math.prod(grid)))
        scaled = (
            t / config.temporal_interpolation_scale,
            x / config.spatial_interpolation_scale,
            y / config.spatial_interpolation_scale,
        )
        sizes = (d // 4, 3 * d // 8, 3 * d // 8)
        angles = rotary_angles(scaled, sizes).split([n // 2 for n in sizes], -1)
        table = torch.cat([part for a in angles for part in (a.sin(), a.cos())], -1).float()
        return pad_to(table, padded_features(d, self._ctx.tp))

    def unpatchify(self, out_BNP: torch.Tensor, grid: Grid) -> torch.Tensor:
        """(B, N, C * deep * p * p) with the channel outermost -> (B, F, C, H, W), both on the host."""
        patches_BNCP = out_BNP.unflatten(2, (self._config.out_channels, -1))
        return super().unpatchify(patches_BNCP.transpose(2, 3).flatten(2), grid).transpose(1, 2).contiguous()


def sequences_of(ctx: Context, config: CogVideoXConfig, grid: Grid, text: int) -> Sequences:
    """Of the tokens of a grid and ``text`` of the prompt; only the video is turned by its positions."""
    return replace(Sequences.of(ctx, math.prod(grid), text), rotary=rotary_tables(ctx, config, grid))


def rotary_tables(ctx: Context, config: CogVideoXConfig, grid: Grid) -> PairTables | None:
    """Return the tables that turn a grid's tokens, cut over sp; None for a model that adds a table of positions.

    A grid that is not the trained one is stretched over it and centred, as diffusers' pipeline does; 1.5 counts patches
    from the corner. Padding stands at position 0.
    """
    if not config.use_rotary_positional_embeddings:
        return None
    tokens = math.prod(grid)
    t, y, x = token_positions(grid, (0, tokens))
    if config.patch_size_t is None:
        rows, columns = _stretched(grid[1:], (config.sample_height, config.sample_width), config.patch_size)
        y = rows[y]
        x = columns[x]
    e = config.attention_head_dim
    angles = rotary_angles((t, y, x), (e // 4, 3 * e // 8, 3 * e // 8))
    return pair_rotary(ctx, pad_to(angles, padded_tokens(tokens, ctx.sp), e // 2), split=True)


def _stretched(grid: tuple[int, int], sample: tuple[int, int], patch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of rows and columns: the grid resized to fit the trained one, shape kept, and centred."""
    h, w = grid
    th = sample[0] // patch
    tw = sample[1] // patch
    size = (th, round(th / h * w)) if h / w > th / tw else (round(tw / w * h), tw)
    axes = []
    for n, whole, part in zip(grid, (th, tw), size, strict=True):
        start = round((whole - part) / 2.0)
        axes.append(torch.linspace(start, (start + part) * (n - 1) / n, n, dtype=torch.float32).double())
    return axes[0], axes[1]
