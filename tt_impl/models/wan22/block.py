"""One block of Wan; counterpart of ``refsim.models.wan22.block``.

    spatial --LN, mod--all_gather--> self-attention --reduce_scatter--gate--+
            --LN affine--all_gather--> cross-attention (no gate) -----------+     over the prompt, and an image
            --LN, mod--all_gather--> FF --reduce_scatter--gate--------------+-->

A norm and its modulation are one pair of ops, gathers are part of the matmul behind them where that can be had.
Statistics and modulation are fp32, the stream between them bf16, and so are the gates, as the op that gates and adds
takes one dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.wan22.config import WanConfig
from tt_impl.layers.feedforward import ParallelFeedForward
from tt_impl.layers.linear import pad_to
from tt_impl.layers.matmul import Residual
from tt_impl.layers.modulation import ModulationTable, put_chunks
from tt_impl.layers.norm import ModulatedLayerNorm
from tt_impl.layers.rope import PairTables
from tt_impl.models.wan22.attention import CrossAttention, SelfAttention
from tt_impl.models.wan22.embeddings import rotary_tables
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.tensor import gather_features

_CHUNKS = 6
_SCALES = (1, 4)
"""Chunks of the table are shift, scale and gate of self-attention, then of the feed-forward."""


class WanBlock:
    """``blocks.{index}`` of diffusers' WanTransformer3DModel."""

    def __init__(self, weights: Weights, ctx: Context, config: WanConfig, index: int) -> None:
        self._ctx = ctx
        d = config.features
        prefix = f"blocks.{index}"
        exact = weights.to(torch.float32)
        table_16D = exact.take(f"{prefix}.scale_shift_table", (1, _CHUNKS, d))
        self._table = ModulationTable(ctx, table_16D[0], scales=_SCALES)
        self._norm = ModulatedLayerNorm(ctx, features=d, eps=config.eps)
        self._attn1 = SelfAttention(weights, ctx, f"{prefix}.attn1", config)
        self._norm2 = None
        if config.cross_attn_norm:
            affine = (exact.take(f"{prefix}.norm2.{name}", (d,)) for name in ("weight", "bias"))
            padded = padded_features(d, ctx.tp)
            self._norm2 = [ctx.put(pad_to(x, padded)[None, None, None], tp_dim=3, dtype=ttnn.float32) for x in affine]
        self._attn2 = CrossAttention(weights, ctx, f"{prefix}.attn2", config)
        self._ffn = ParallelFeedForward(weights, ctx, f"{prefix}.ffn", features=d, hidden=config.ffn_dim)

    def __call__(
        self,
        spatial: ttnn.Tensor,
        prompt: ttnn.Tensor,
        time: ttnn.Tensor,
        *,
        rotary: PairTables,
        logical_n: int,
        image: ttnn.Tensor | None = None,
    ) -> ttnn.Tensor:
        """Run the block on (B, 1, local N, local D).

        Args:
            prompt: (B, 1, L, D), gathered.
            time: the time step's six chunks side by side, (B, 1, 1 or local N, 6 * local D).
            image: (B, 1, M, D), gathered.
        """
        shift, scale, gate, shift_ff, scale_ff, gate_ff = self._table(time)
        gate, gate_ff = (ttnn.typecast(x, self._ctx.dtype) for x in (gate, gate_ff))
        spatial = self._attn1(self._norm(spatial, scale, shift), rotary, logical_n, Residual(spatial, gate))
        normed = spatial if self._norm2 is None else self._norm(spatial, *self._norm2)
        spatial = ttnn.add(spatial, self._attn2(normed, prompt, image))
        return self._ffn.of_shards(self._norm(spatial, scale_ff, shift_ff), Residual(spatial, gate_ff))


def bind_block(
    weights: Weights, ctx: Context, config: WanConfig, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index`` for patches of ``grid`` (frames, rows, columns) and the time step's chunks ``modulation``
    (B, 6, D); it hands no prompt on.
    """
    frames, rows, columns = inputs["grid"].tolist()
    block = WanBlock(weights, ctx, config, index)
    at = {
        "rotary": rotary_tables(ctx, config, (frames, rows, columns)),
        "logical_n": math.prod((frames, rows, columns)),
    }
    time = put_chunks(ctx, inputs["modulation"])

    def run(spatial: ttnn.Tensor, prompt: ttnn.Tensor, _time_BD: ttnn.Tensor) -> tuple[ttnn.Tensor, None]:
        return block(spatial, gather_features(ctx, prompt), time, **at), None

    return run
