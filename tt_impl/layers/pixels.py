"""Attention of every pixel of a picture over all its pixels, one head, queries local, keys and values gathered.

    rows (B, 1, N, C) --linear--> q          -----------------------------> SDPA --linear--> rows
                              --> k | v side by side --all_gather over columns, then rows, padding dropped--^

Legend: B pictures (samples, or frames of a video), N local pixels, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import ttnn

from refsim.base.errors import UserError
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, gather_image, to_image, to_rows
from tt_impl.parallel.padding import TILE, round_up

_WIDE = 256
"""Channels from which on two blocks of 256 keys and values no longer fit in L1 beside the queries."""


class PixelAttention:
    """The linears around it included.

    Args:
        qkv: weight (3 C, C) and bias of queries, keys and values, one after the other.
        out: those of the linear after attention, (C, C).
        cuts: what leaves is cut by channel over tp.
    """

    def __init__(
        self,
        ctx: Context,
        qkv: Sequence[torch.Tensor],
        out: Sequence[torch.Tensor],
        *,
        channels: int,
        cuts: bool = False,
    ) -> None:
        if channels % TILE:
            raise UserError(
                f"TTNN attends over whole tiles of channels, so the {channels} of the decoder's mid block must be a "
                f"multiple of {TILE}."
            )
        self._ctx = ctx
        self._channels = channels
        self._qkv = [ctx.put(qkv[0].t()[None, None]), ctx.put(qkv[1][None, None, None])]
        tp_dim = 3 if cuts else None
        self._out = [ctx.put(x, tp_dim=tp_dim) for x in (out[0].t()[None, None], out[1][None, None, None])]

    def __call__(self, x: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
        c = self._channels
        pictures = x.shape[0]
        qkv = self._linear(x, self._qkv)
        kv = to_rows(gather_image(self._ctx, to_image(qkv[:, :, :, c:], shards), shards), pictures)
        out = ttnn.transformer.scaled_dot_product_attention(
            qkv[:, :, :, :c],
            kv[:, :, :, :c],
            kv[:, :, :, c:],
            is_causal=False,
            program_config=pixel_chunks(self._ctx, c, x.shape[2], kv.shape[2]),
            compute_kernel_config=self._ctx.sdpa_config,
        )
        return self._linear(out, self._out)

    def _linear(self, x: ttnn.Tensor, params: list[ttnn.Tensor]) -> ttnn.Tensor:
        return ttnn.linear(x, params[0], bias=params[1], compute_kernel_config=self._ctx.linear_config)


def pixel_chunks(ctx: Context, channels: int, queries: int, keys: int) -> ttnn.SDPAProgramConfig:
    """Chunks no longer than the tile-padded rows; one head takes as much L1 as all of a transformer's."""
    k_chunk = 128 if channels > _WIDE else 256
    rows = round_up(queries, TILE)
    columns = round_up(keys, TILE)
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=ctx.device.compute_with_storage_grid_size(),
        q_chunk_size=min(64, rows),
        k_chunk_size=min(k_chunk, columns),
        exp_approx_mode=False,
    )
