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


class TimeTextEmbedding:
    """Time step and pooled text, each through linear, silu, linear, then summed. The sinusoid is made on the host."""

    TIME_FEATURES = 256

    def __init__(self, weights: Weights, ctx: Context, name: str, *, features: int, pooled_features: int) -> None:
        self._ctx = ctx
        time = f"{name}.timestep_embedder"
        text = f"{name}.text_embedder"
        self._time = TwoLinears(weights, ctx, time, in_features=self.TIME_FEATURES, features=features)
        self._text = TwoLinears(weights, ctx, text, in_features=pooled_features, features=features)

    def __call__(self, timestep_B: torch.Tensor, pooled_BP: torch.Tensor) -> ttnn.Tensor:
        """(B,) and (B, P) on the host -> (B, 1, 1, D) on every device."""
        time = self._time(self._ctx.put(timestep_embedding(timestep_B, self.TIME_FEATURES)[:, None, None]))
        return ttnn.add(time, self._text(self._ctx.put(pooled_BP[:, None, None])))


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
