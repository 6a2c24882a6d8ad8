"""Patches of every frame, learned rotations, the time step with the pooled prompt; counterpart of
``refsim.models.mochi.embeddings``.

    rotation   angle of a pair of head h at (t, y, x) = t * f[0, h] + y * f[1, h] + x * f[2, h], f learned
    pooling    [mean of a prompt's tokens | its tokens] --fused QKV--> the first row asks all, 8 heads --> linear

Patches, angles and the mean are made on the host, which cuts tokens over sp and heads over tp.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
import ttnn

from refsim.base.errors import UserError
from refsim.files.checkpoint import Weights
from refsim.models.mochi.config import POOL_HEADS, MochiConfig
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.attention import local_attention
from tt_impl.layers.embeddings import Grid, TimestepEmbedding
from tt_impl.layers.linear import Linear, check_head_dim, create_heads
from tt_impl.layers.matmul import matmul
from tt_impl.layers.rope import pair_rotary
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_heads, padded_tokens

_AREA = 192 * 192


def sequences_of(
    ctx: Context, frequencies_3HP: torch.Tensor, grid: Grid, places_L: torch.Tensor, samples: int = 1
) -> Sequences:
    """Return how a video of ``grid`` is cut and turned, tokens over sp and heads over tp.

    Args:
        frequencies_3HP: of all heads, how fast a pair turns along each axis.
        places_L: where the valid tokens of the prompts stand.
        samples: prompts, which count where ``places_L`` has holes.
    """
    sequences = Sequences.of(ctx, math.prod(grid), len(places_L))
    positions_N3 = positions(grid)
    angles_HNP = torch.einsum("nd,dhp->hnp", positions_N3.to(frequencies_3HP.device), frequencies_3HP.float())
    heads, rows, _ = angles_HNP.shape
    padded = padded_heads(heads, ctx.tp * ctx.ulysses)
    padding = (0, 0, 0, padded_tokens(rows, ctx.sp) - rows, 0, padded - heads)
    sequences = replace(sequences, rotary=pair_rotary(ctx, F.pad(angles_HNP, padding), split=True))
    answers_LL = (torch.arange(len(places_L)) == places_L[:, None]).float()
    if answers_LL.diagonal().all():
        return sequences
    if sequences.logical_l is not None:
        raise UserError(
            "a mask with holes moves the answers of the prompt's tokens over sp; use --prompt-layout replicated."
        )
    return replace(sequences, prompt_answers=ctx.put(answers_LL.expand(samples, padded // ctx.tp, -1, -1)))


def positions(grid: Grid) -> torch.Tensor:
    """(t, y, x) of all tokens of a grid (frames, rows, columns), (N, 3) in fp32, t slowest."""
    frames, rows, columns = grid
    scale = (_AREA / (rows * columns)) ** 0.5
    axes = [torch.arange(frames).float()]
    for size in (rows, columns):
        edges = torch.linspace(-size * scale / 2, size * scale / 2, size + 1)
        axes.append((edges[:-1] + edges[1:]) / 2)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 2)


class Conditioning:
    """``time_embed``: the time step through two linears plus the pooled prompt, on every device."""

    def __init__(self, weights: Weights, ctx: Context, config: MochiConfig) -> None:
        self._ctx = ctx
        name = "time_embed"
        text = config.text_embed_dim
        check_head_dim(text // POOL_HEADS)
        wide = {"features": config.features, "width": config.time_embed_dim}
        self._time = TimestepEmbedding(weights, ctx, f"{name}.timestep_embedder", **wide)
        sizes = {"to_q": text, "to_kv": 2 * text}
        parts = [
            torch.cat([weights.take(f"{name}.pooler.{part}.{kind}", (size, *more)) for part, size in sizes.items()])
            for kind, more in (("weight", (text,)), ("bias", ()))
        ]
        self._qkv = [ctx.put_weight(parts[0].t()[None, None]), ctx.put(parts[1][None, None, None])]
        self._out = Linear(weights, ctx, f"{name}.pooler.to_out", in_features=text, out_features=config.features)

    def __call__(self, timestep_B: torch.Tensor, prompt_BLT: torch.Tensor) -> ttnn.Tensor:
        """Time step in 0..1000 and a prompt's valid tokens on the host -> (B, 1, 1, D)."""
        return ttnn.add(self._time(timestep_B), self._pooled(prompt_BLT))

    def _pooled(self, prompt_BLT: torch.Tensor) -> ttnn.Tensor:
        mean_B1T = prompt_BLT.sum(1, keepdim=True) / max(prompt_BLT.shape[1], 1)
        rows = torch.cat([mean_B1T, prompt_BLT], 1)
        q, k, v = create_heads(matmul(self._ctx, self._ctx.put(rows[:, None]), *self._qkv), POOL_HEADS)
        return self._out(local_attention(self._ctx, (q[:, :, :1], k, v), is_causal=False))
