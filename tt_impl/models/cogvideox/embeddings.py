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

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.models.cogvideox.config import CogVideoXConfig
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.embeddings import TwoLinears, timestep_embedding
from tt_impl.layers.linear import ColParallelLinear, pad_to
from tt_impl.layers.rope import PairTables, pair_rotary, rotary_angles, token_positions
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features, padded_tokens
from tt_impl.parallel.sequence import put_tokens

Grid = tuple[int, int, int]


class VideoPatches:
    """The convolution over patches as a column-parallel linear on every device's tokens, and back."""

    def __init__(self, weights: Weights, ctx: Context, config: CogVideoXConfig) -> None:
        self._ctx = ctx
        self._config = config
        c = config.in_channels
        p = config.patch_size
        self._deep = config.patch_size_t or 1
        self._proj = ColParallelLinear(
            weights,
            ctx,
            "patch_embed.proj",
            in_features=c * self._deep * p * p if config.patch_size_t else (c, p, p),
            out_features=config.features,
        )

    def grid(self, size: tuple[int, ...]) -> Grid:
        """Patches (deep, high, wide) of a latent (frames, channels, height, width)."""
        frames, _, height, width = size
        p = self._config.patch_size
        if height % p or width % p or frames % self._deep:
            raise UserError(
                f"a latent of {frames} frames of {height}x{width} does not divide into patches of "
                f"{self._deep}x{p}x{p}; pad it."
            )
        return frames // self._deep, height // p, width // p

    def __call__(self, latent_BFCHW: torch.Tensor) -> ttnn.Tensor:
        """Latent on the host -> (B, 1, local N, local D), positions of 2b added."""
        t, h, w = self.grid(tuple(latent_BFCHW.shape[1:]))
        p = self._config.patch_size
        x = latent_BFCHW.unflatten(4, (w, p)).unflatten(3, (h, p)).unflatten(1, (t, self._deep))
        patches_BNP = x.permute(0, 1, 4, 6, 3, 2, 5, 7).flatten(4).flatten(1, 3)  # (B, t h w, C deep p p)
        embedded = self._proj(put_tokens(self._ctx, patches_BNP))
        if self._config.use_rotary_positional_embeddings:
            return embedded
        return ttnn.add(embedded, put_tokens(self._ctx, self._table((t, h, w))[None], tp_dim=3))

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
        p = self._config.patch_size
        x = out_BNP.unflatten(2, (-1, self._deep, p, p)).unflatten(1, grid)  # (B, t, h, w, C, deep, p, p)
        return x.permute(0, 1, 5, 4, 2, 6, 3, 7).flatten(6).flatten(4, 5).flatten(1, 2).contiguous()


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


class TimeEmbedding:
    """The time step, or ``ofs``, through two linears, replicated on every device; the sinusoid is made on the host."""

    def __init__(self, weights: Weights, ctx: Context, config: CogVideoXConfig, ofs: bool = False) -> None:
        self._ctx = ctx
        wide = config.time_embed_dim
        name, self._features = ("ofs_embedding", wide) if ofs else ("time_embedding", config.features)
        self._linears = TwoLinears(weights, ctx, name, in_features=self._features, features=wide)

    def __call__(self, timestep_B: torch.Tensor) -> ttnn.Tensor:
        """(B,) in 0..1000 on the host -> (B, 1, 1, time_embed_dim)."""
        sinusoid = timestep_embedding(timestep_B, self._features)[:, None, None]
        return self._linears(self._ctx.put(sinusoid))
