"""Patches of every frame, learned rotations, the time step with the pooled prompt; counterpart of
``refsim.models.mochi.embeddings``.

    rotation   angle of a pair of head h at (t, y, x) = t * f[0, h] + y * f[1, h] + x * f[2, h], f learned
    pooling    [mean of a prompt's tokens | its tokens] --fused QKV--> the first row asks all, 8 heads --> linear

Patches, angles and the mean are made on the host, which cuts tokens over sp and heads over tp.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import ttnn

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.models.mochi.config import POOL_HEADS, MochiConfig
from tt_impl.layers.attention import local_attention
from tt_impl.layers.embeddings import TwoLinears, timestep_embedding
from tt_impl.layers.linear import ColParallelLinear, Linear
from tt_impl.layers.matmul import matmul
from tt_impl.layers.rope import PairTables, pair_rotary
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import TILE, padded_heads, padded_tokens
from tt_impl.parallel.sequence import put_tokens

_AREA = 192 * 192
Grid = tuple[int, int, int]


class VideoPatches:
    """The convolution over the patches of every frame as a column-parallel linear on devices' tokens, and back."""

    def __init__(self, weights: Weights, ctx: Context, config: MochiConfig) -> None:
        self._ctx = ctx
        self._patch = config.patch_size
        shape = (config.in_channels, config.patch_size, config.patch_size)
        self._proj = ColParallelLinear(
            weights, ctx, "patch_embed.proj", in_features=shape, out_features=config.features
        )

    def __call__(self, latent_BCTHW: torch.Tensor, grid: Grid) -> ttnn.Tensor:
        """Latent on the host -> (B, 1, local N, local D)."""
        _, rows, columns = grid
        x = latent_BCTHW.unflatten(4, (columns, self._patch)).unflatten(3, (rows, self._patch))
        patches_BNP = x.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)  # (B, t h w, C p p)
        return self._proj(put_tokens(self._ctx, patches_BNP))

    def unpatchify(self, out_BNP: torch.Tensor, grid: Grid) -> torch.Tensor:
        """(B, N, p * p * C) with the channel innermost -> (B, C, T, H, W), both on the host."""
        x = out_BNP.unflatten(2, (self._patch, self._patch, -1)).unflatten(1, grid)  # (B, t, h, w, p, p, C)
        return x.permute(0, 6, 1, 2, 4, 3, 5).flatten(5).flatten(3, 4).contiguous()


def learned_rotary(ctx: Context, frequencies_3HP: torch.Tensor, grid: Grid) -> PairTables:
    """Return the tables that turn a grid's tokens, cut over sp, and each of the heads, cut over tp.

    Args:
        frequencies_3HP: of all heads, how fast a pair turns along each axis.
    """
    positions_N3 = positions(grid)
    angles_HNP = torch.einsum("nd,dhp->hnp", positions_N3.to(frequencies_3HP.device), frequencies_3HP.float())
    heads, rows, _ = angles_HNP.shape
    more_heads = padded_heads(heads, ctx.tp * ctx.ulysses) - heads
    return pair_rotary(ctx, F.pad(angles_HNP, (0, 0, 0, padded_tokens(rows, ctx.sp) - rows, 0, more_heads)), split=True)


def positions(grid: Grid) -> torch.Tensor:
    """(t, y, x) of all tokens of a grid (frames, rows, columns), (N, 3) in fp32, t slowest."""
    frames, rows, columns = grid
    scale = (_AREA / (rows * columns)) ** 0.5
    axes = [torch.arange(frames, dtype=torch.float32)]
    for size in (rows, columns):
        edges = torch.linspace(-size * scale / 2, size * scale / 2, size + 1)
        axes.append((edges[:-1] + edges[1:]) / 2)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 2)


class Conditioning:
    """``time_embed``: the time step through two linears plus the pooled prompt, on every device."""

    def __init__(self, weights: Weights, ctx: Context, config: MochiConfig) -> None:
        self._ctx = ctx
        self._width = config.time_embed_dim
        name = "time_embed"
        text = config.text_embed_dim
        if text // POOL_HEADS % TILE:
            raise UserError(
                f"TTNN splits heads by whole tiles, so text_embed_dim {text} must be a multiple of {POOL_HEADS * TILE}."
            )
        self._time = TwoLinears(
            weights, ctx, f"{name}.timestep_embedder", in_features=self._width, features=config.features
        )
        sizes = {"to_q": text, "to_kv": 2 * text}
        parts = [
            torch.cat([weights.take(f"{name}.pooler.{part}.{kind}", (size, *more)) for part, size in sizes.items()])
            for kind, more in (("weight", (text,)), ("bias", ()))
        ]
        self._qkv = [ctx.put_weight(parts[0].t()[None, None]), ctx.put(parts[1][None, None, None])]
        self._out = Linear(weights, ctx, f"{name}.pooler.to_out", in_features=text, out_features=config.features)

    def __call__(self, timestep_B: torch.Tensor, prompt_BLT: torch.Tensor) -> ttnn.Tensor:
        """Time step in 0..1000 and a prompt's valid tokens on the host -> (B, 1, 1, D)."""
        sinusoid = timestep_embedding(timestep_B, self._width)[:, None, None]
        return ttnn.add(self._time(self._ctx.put(sinusoid)), self._pooled(prompt_BLT))

    def _pooled(self, prompt_BLT: torch.Tensor) -> ttnn.Tensor:
        mean_B1T = prompt_BLT.sum(1, keepdim=True) / max(prompt_BLT.shape[1], 1)
        rows = torch.cat([mean_B1T, prompt_BLT], 1)
        q, k, v = ttnn.experimental.nlp_create_qkv_heads(
            matmul(self._ctx, self._ctx.put(rows[:, None]), *self._qkv),
            num_heads=POOL_HEADS,
            num_kv_heads=POOL_HEADS,
            transpose_k_heads=False,
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )
        return self._out(local_attention(self._ctx, (q[:, :, :1], k, v), is_causal=False))
