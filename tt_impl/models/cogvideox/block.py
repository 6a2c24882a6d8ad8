"""One block of CogVideoX; counterpart of ``refsim.models.cogvideox.block``.

    video --LN affine--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate-->
    text  --LN affine--mod--all_gather--'    (same weights for both)                 '

Both streams share every weight; the linear of a norm's modulation gives each stream its own shift, scale and gate. Only
video tokens are turned by their positions. A norm, its weight and bias and the modulation are one pair of ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.cogvideox.config import CogVideoXConfig
from tt_impl.layers.feedforward import ParallelFeedForward
from tt_impl.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads
from tt_impl.layers.matmul import Residual
from tt_impl.layers.modulation import Modulation
from tt_impl.layers.norm import DistributedLayerNorm, LayerNorm
from tt_impl.layers.rope import PairTables, rotate_pairs
from tt_impl.models.cogvideox.embeddings import rotary_tables
from tt_impl.parallel.context import Context
from tt_impl.parallel.ring import QKV
from tt_impl.parallel.sequence import split_length
from tt_impl.parallel.usp import joint_attention

_HEAD_EPS = 1e-6
Streams = tuple[ttnn.Tensor, ttnn.Tensor]


class _Attention:
    """``attn1``; both streams cut over tp and sp, in and out; the weights are the same for both."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: CogVideoXConfig) -> None:
        self._ctx = ctx
        e = config.attention_head_dim
        sizes = AttentionSizes(config.features, config.num_attention_heads, e)
        names = tuple(f"{prefix}.to_{n}" for n in "qkv")
        self._qkv = ColParallelQKV(weights, ctx, names, sizes, bias=config.attention_bias)
        self._norm_q, self._norm_k = (
            LayerNorm(ctx, features=e, eps=_HEAD_EPS, affine=(weights, f"{prefix}.norm_{n}")) for n in "qk"
        )
        self._out = RowParallelHeads(weights, ctx, f"{prefix}.to_out.0", sizes)

    def project(self, x: ttnn.Tensor, rotary: PairTables | None) -> QKV:
        """q, k, v of a stream (B, 1, rows, local D), gathered on the way; ``rotary`` turns q and k of the video."""
        q, k, v = self._qkv.of_shards(x)
        q = self._norm_q(q)
        k = self._norm_k(k)
        if rotary is not None:
            q = rotate_pairs(q, rotary)
            k = rotate_pairs(k, rotary)
        return q, k, v

    def attend(
        self, qkv: QKV, text_qkv: QKV, *, logical_n: int, logical_l: int | None, onto: Residual, onto_text: Residual
    ) -> Streams:
        """Results (B, 1, rows, local D), gated and added to their streams."""
        out, text_out = joint_attention(self._ctx, qkv, text_qkv, logical_n=logical_n, logical_l=logical_l)
        return self._out(out, onto), self._out(text_out, onto_text)


class CogVideoXBlock:
    """``transformer_blocks.{index}`` of diffusers' CogVideoXTransformer3DModel."""

    def __init__(self, weights: Weights, ctx: Context, config: CogVideoXConfig, index: int) -> None:
        self._ctx = ctx
        d = config.features
        prefix = f"transformer_blocks.{index}"

        def zero(name: str) -> tuple[DistributedLayerNorm, Modulation]:
            norm = DistributedLayerNorm(ctx, features=d, eps=config.norm_eps, affine=(weights, f"{prefix}.{name}.norm"))
            wide = {"features": d, "in_features": config.time_embed_dim, "chunks": 6, "scales": (1, 4)}
            return norm, Modulation(weights, ctx, f"{prefix}.{name}.linear", **wide)

        (self._norm1, self._mod1) = zero("norm1")
        (self._norm2, self._mod2) = zero("norm2")
        self._attn = _Attention(weights, ctx, f"{prefix}.attn1", config)
        self._ff = ParallelFeedForward(weights, ctx, f"{prefix}.ff", features=d, hidden=4 * d)

    def __call__(
        self,
        video: ttnn.Tensor,
        text: ttnn.Tensor,
        time_BT: ttnn.Tensor,
        *,
        rotary: PairTables | None,
        logical_n: int,
        logical_l: int | None,
    ) -> Streams:
        """(B, 1, local N, local D) and (B, 1, local L, local D) in and out.

        Args:
            time_BT: (B, 1, 1, T) with silu applied.
            rotary: of this device's video tokens; None for a model with a table of positions.
            logical_n: video tokens of all devices, padding left out.
            logical_l: the same of a prompt that is split over sp; None for one that every device holds whole.
        """
        shift, scale, gate, text_shift, text_scale, text_gate = self._mod1(time_BT)
        (normed,) = self._norm1.modulated(video, (shift, scale))
        qkv = self._attn.project(normed, rotary)
        (normed_text,) = self._norm1.modulated(text, (text_shift, text_scale))
        video, text = self._attn.attend(
            qkv,
            self._attn.project(normed_text, None),
            logical_n=logical_n,
            logical_l=logical_l,
            onto=Residual(video, gate),
            onto_text=Residual(text, text_gate),
        )
        shift, scale, gate, text_shift, text_scale, text_gate = self._mod2(time_BT)
        (normed,) = self._norm2.modulated(video, (shift, scale))
        video = self._ff.of_shards(normed, Residual(video, gate))
        (normed_text,) = self._norm2.modulated(text, (text_shift, text_scale))
        return video, self._ff.of_shards(normed_text, Residual(text, text_gate))


def bind_block(
    weights: Weights, ctx: Context, config: CogVideoXConfig, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index`` for the video whose patches ``grid`` (deep, high, wide) counts."""
    frames, rows, columns = inputs["grid"].tolist()
    return partial(
        CogVideoXBlock(weights, ctx, config, index),
        rotary=rotary_tables(ctx, config, (frames, rows, columns)),
        logical_n=frames * rows * columns,
        logical_l=split_length(ctx, inputs["prompt"].shape[1]),
    )
