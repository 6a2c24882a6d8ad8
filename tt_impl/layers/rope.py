"""Rotary position embedding of text: feature j of a head's first half turns with feature j of its second half.

Angles in fp32 on the host, as the language models were trained; the tables are the same on every device.
"""

from __future__ import annotations

import torch
import ttnn

from tt_impl.parallel.context import Context

Tables = tuple[ttnn.Tensor, ttnn.Tensor]


def text_rotary(ctx: Context, positions: torch.Tensor, features: int, theta: float) -> Tables:
    """(cos, sin), each (1, 1, N, features), both halves alike, of N whole positions in a text."""
    frequencies = 1.0 / theta ** (torch.arange(0, features, 2, dtype=torch.float32) / features)
    angles = torch.outer(positions.float(), frequencies).repeat(1, 2)[None, None]
    return ctx.put(angles.cos()), ctx.put(angles.sin())


def rotate_halves(x: ttnn.Tensor, tables: Tables) -> ttnn.Tensor:
    """Turn (1, H, N, E); the op gives whole tiles of rows, of which the first N are taken."""
    rows = x.shape[2]
    turned = ttnn.experimental.rotary_embedding(x, *tables)
    return turned if turned.shape[2] == rows else turned[:, :, :rows]
