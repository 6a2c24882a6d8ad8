"""Rotary position embedding, tables made on the host.

Text: feature j of a head's first half turns with feature j of its second half; angles in fp32, as the language models
were trained.

Pictures and video: neighbouring features turn together. TTNN multiplies every 32 features by a matrix that swaps
neighbours, with a sign:

    (x0, x1) * cos + ((x0, x1) @ turn) * sin        turn: (x0, x1) -> (-x1, x0)

Legend: B batch, H heads, N tokens, E features of a head, P angles of a token.
"""

from __future__ import annotations

import math

import torch
import ttnn

from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import TILE

Tables = tuple[ttnn.Tensor, ttnn.Tensor]
PairTables = tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]


def text_rotary(ctx: Context, positions_N: torch.Tensor, features: int, theta: float) -> Tables:
    """(cos, sin), each (1, 1, N, features), both halves alike, of N whole positions in a text."""
    frequencies = 1.0 / theta ** (torch.arange(0, features, 2, dtype=torch.float32) / features)
    angles = torch.outer(positions_N.float(), frequencies).repeat(1, 2)[None, None]
    return ctx.put(angles.cos()), ctx.put(angles.sin())


def rotate_halves(x_BHNE: ttnn.Tensor, cos_NP: ttnn.Tensor, sin_NP: ttnn.Tensor) -> ttnn.Tensor:
    """Turn (1, H, N, E) by tables of :func:`text_rotary`; of the whole tiles that the op gives, N rows are taken."""
    rows = x_BHNE.shape[2]
    turned = ttnn.experimental.rotary_embedding(x_BHNE, cos_NP, sin_NP)
    return turned if turned.shape[2] == rows else turned[:, :, :rows]


def token_positions(grid: tuple[int, int, int], span: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """(t, y, x), each (stop - start,), of the tokens [start, stop) of a grid (frames, rows, columns), t slowest."""
    _, rows, columns = grid
    token = torch.arange(*span)
    return token // (rows * columns), token // columns % rows, token % columns


def rotary_angles(
    positions: tuple[torch.Tensor, ...], features: tuple[int, ...], theta: float = 10000.0
) -> torch.Tensor:
    """(tokens, sum(features) / 2) in float64: per axis, a position times the frequencies of its share of a head.

    Args:
        positions: per axis one number per token.
        features: per axis how many features of a head it turns, even.
    """
    angles = []
    for position, size in zip(positions, features, strict=True):
        frequencies = torch.exp(torch.arange(0, size, 2, dtype=torch.float64) * (-math.log(theta) / size))
        angles.append(position.double()[:, None] * frequencies)
    return torch.cat(angles, -1)


def pair_rotary(
    ctx: Context, angles_NP: torch.Tensor, *, split: bool, dtype: ttnn.DataType | None = None
) -> PairTables:
    """(cos, sin, turn), cos and sin (1, 1, rows, 2 * P), of N tokens whose pairs turn by P angles each.

    Args:
        angles_NP: (H, N, P) where each head turns otherwise; these are cut over tp, (1, local heads, rows, 2 * P).
        split: the tokens are cut over sp (N a multiple of its factor), else every device has all of them.
        dtype: of cos and sin, if not that of storage; the op of a norm over all heads takes fp32 too.
    """
    turn = torch.zeros(1, 1, TILE, TILE)
    even = torch.arange(0, TILE, 2)
    turn[..., even, even + 1] = 1.0
    turn[..., even + 1, even] = -1.0
    by_head = angles_NP.ndim == 3
    angles = angles_NP.repeat_interleave(2, -1)[None] if by_head else angles_NP.repeat_interleave(2, -1)[None, None]
    where = {"sp_dim": 2 if split else None, "tp_dim": 1 if by_head else None}
    cos, sin = (ctx.put(x.float(), **where, dtype=dtype) for x in (angles.cos(), angles.sin()))
    return cos, sin, ctx.put(turn)


def rotate_pairs(x: ttnn.Tensor, tables: PairTables) -> ttnn.Tensor:
    """Turn neighbouring features of (B, H, N, E)."""
    return ttnn.experimental.rotary_embedding_llama(x, *tables)
