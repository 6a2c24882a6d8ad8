"""Embeddings: time step and pooled text (replicated), image patches with the cropped positional table, tokens."""

from __future__ import annotations

import math

import torch
import ttnn

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from tt_impl.layers.linear import ColParallelLinear, Linear, pad_to
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features, padded_tokens
from tt_impl.parallel.sequence import put_tokens

Grid = tuple[int, int, int]
"""Patches of a video: frames, rows, columns."""


def timestep_embedding(timestep: torch.Tensor, features: int, *, scale: int = 1) -> torch.Tensor:
    """(B,) or (B, N) in 0..1000 -> (..., features) in fp32 on the host: [cos, sin] of t * 10000^(-k / half).

    ``scale``: what the angles are multiplied by, for times in 0..1.
    """
    half = features // 2
    frequencies = torch.exp(torch.arange(half) * (-math.log(10000) / half))
    angles = scale * (timestep.float()[..., None] * frequencies)
    return torch.cat([angles.cos(), angles.sin()], -1)


class TwoLinears:
    """``linear_1``, silu, ``linear_2`` of the module ``name``, on every device; ``bias``: both have one."""

    def __init__(
        self, weights: Weights, ctx: Context, name: str, *, in_features: int, features: int, bias: bool = True
    ) -> None:
        out = {"out_features": features, "bias": bias}
        self._first = Linear(weights, ctx, f"{name}.linear_1", in_features=in_features, **out)
        self._second = Linear(weights, ctx, f"{name}.linear_2", in_features=features, **out)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return self._second(ttnn.silu(self._first(x)))


class TimestepEmbedding:
    """The sinusoid of a time step, or of another number, through two linears of the module ``name``, on every device.

    Args:
        width: of the sinusoid, which is made on the host.
        scale: what its angles are multiplied by.
        bias: both linears have one.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        features: int,
        width: int = 256,
        scale: int = 1,
        bias: bool = True,
    ) -> None:
        self._ctx = ctx
        self._width = width
        self._scale = scale
        self._linears = TwoLinears(weights, ctx, name, in_features=width, features=features, bias=bias)

    def __call__(self, timestep_B: torch.Tensor) -> ttnn.Tensor:
        """(B,) on the host -> (B, 1, 1, features)."""
        sinusoid = timestep_embedding(timestep_B, self._width, scale=self._scale)
        return self._linears(self._ctx.put(sinusoid[:, None, None]))


class TimeTextEmbedding:
    """Time step and pooled text, each through linear, silu, linear, then summed. The sinusoid is made on the host."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, features: int, pooled_features: int) -> None:
        self._ctx = ctx
        self._time = TimestepEmbedding(weights, ctx, f"{name}.timestep_embedder", features=features)
        self._text = TwoLinears(weights, ctx, f"{name}.text_embedder", in_features=pooled_features, features=features)

    def __call__(self, timestep_B: torch.Tensor, pooled_BP: torch.Tensor) -> ttnn.Tensor:
        """(B,) and (B, P) on the host -> (B, 1, 1, D) on every device."""
        return ttnn.add(self._time(timestep_B), self._text(self._ctx.put(pooled_BP[:, None, None])))


class PatchEmbed:
    """Latent -> tokens of every device; patches and the crop of the positional table are cut on the host."""

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        patch: int,
        in_channels: int,
        features: int,
        table_size: int,
    ) -> None:
        self._ctx = ctx
        self._patch = patch
        self._features = features
        self._table_size = table_size
        self._proj = ColParallelLinear(
            weights, ctx, f"{name}.proj", in_features=(in_channels, patch, patch), out_features=features
        )
        self._table = weights.take(f"{name}.pos_embed", (1, table_size**2, features))

    def __call__(self, latent_BCHW: torch.Tensor) -> ttnn.Tensor:
        """(B, C, H, W) -> (B, 1, local N, local D)."""
        ctx = self._ctx
        p = self._patch
        batch, channels, height, width = latent_BCHW.shape
        rows = height // p
        columns = width // p
        patches = latent_BCHW.reshape(batch, channels, rows, p, columns, p).permute(0, 2, 4, 1, 3, 5)
        patches = patches.reshape(batch, 1, rows * columns, channels * p * p)
        padded = padded_tokens(rows * columns, ctx.sp)
        x = self._proj(ctx.put(pad_to(patches, padded, patches.shape[-1]), sp_dim=2))
        top = (self._table_size - rows) // 2
        left = (self._table_size - columns) // 2
        table = self._table.reshape(self._table_size, self._table_size, -1)
        table = table[top : top + rows, left : left + columns].reshape(1, 1, rows * columns, -1)
        table = pad_to(table, padded, padded_features(self._features, ctx.tp))
        return ttnn.add(x, ctx.put(table, sp_dim=2, tp_dim=3))


class VideoPatches:
    """The convolution over patches of a video as a column-parallel linear on every device's tokens, and back.

    Args:
        patch: frames, rows and columns of a patch.
        in_features: of the linear, C * frames * rows * columns; the dims of its weight where it is a convolution's.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        patch: Grid,
        in_features: int | tuple[int, ...],
        features: int,
    ) -> None:
        self._ctx = ctx
        self._patch = patch
        self._proj = ColParallelLinear(weights, ctx, name, in_features=in_features, out_features=features)

    def grid(self, size: tuple[int, ...]) -> Grid:
        """Return how many patches a latent (frames, height, width) has; ``UserError`` if it does not fit."""
        if any(n % p for n, p in zip(size, self._patch, strict=True)):
            raise UserError(
                f"a latent of {'x'.join(map(str, size))} (frames, height, width) does not divide into "
                f"{'x'.join(map(str, self._patch))} patches; pad or crop it."
            )
        frames, rows, columns = (n // p for n, p in zip(size, self._patch, strict=True))
        return frames, rows, columns

    def __call__(self, latent_BCTHW: torch.Tensor) -> ttnn.Tensor:
        """Latent on the host -> (B, 1, local N, local D)."""
        t, h, w = self.grid(tuple(latent_BCTHW.shape[2:]))
        pt, ph, pw = self._patch
        x = latent_BCTHW.unflatten(4, (w, pw)).unflatten(3, (h, ph)).unflatten(2, (t, pt))
        patches_BNP = x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)  # (B, t h w, C pt ph pw)
        return self._proj(put_tokens(self._ctx, patches_BNP))

    def unpatchify(self, out_BNP: torch.Tensor, grid: Grid) -> torch.Tensor:
        """(B, N, pt * ph * pw * C) with the channel innermost -> (B, C, T, H, W), both on the host."""
        x = out_BNP.unflatten(2, (*self._patch, -1)).unflatten(1, grid)
        return x.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6).flatten(4, 5).flatten(2, 3).contiguous()


class TokenEmbedding:
    """Rows of a table of tokens, whole on every device; TTNN keeps such tables in bf16.

    Raises:
        UserError: at a call, an id that is not in the vocabulary, which a device would look up beyond the table.
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, *, vocab_size: int, features: int) -> None:
        self._ctx = ctx
        self._vocab_size = vocab_size
        table = weights.take(f"{name}.weight", (vocab_size, features)).to(torch.bfloat16)
        self._table = ctx.put_rows(table, ttnn.bfloat16)

    def __call__(self, ids_BN: torch.Tensor) -> ttnn.Tensor:
        """Ids (B, N) on the host -> (B, 1, N, D)."""
        if int(ids_BN.min()) < 0 or int(ids_BN.max()) >= self._vocab_size:
            raise UserError(
                f"the tokenizer gave an id outside 0 to {self._vocab_size - 1}, which the table of tokens has; use the "
                "tokenizer that belongs to it."
            )
        ids = self._ctx.put_rows(ids_BN.to(torch.int32), ttnn.uint32)
        rows = ttnn.unsqueeze(ttnn.embedding(ids, self._table, layout=ttnn.TILE_LAYOUT), 1)
        return rows if rows.dtype == self._ctx.dtype else ttnn.typecast(rows, self._ctx.dtype)
