"""One MMDiT block; counterpart of ``refsim.models.sd35.block``.

spatial --LN--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate--+-->
prompt  --LN--mod--all_gather--'         (same, its own weights)            '
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.sd35.config import SD35Config
from tt_impl.layers.attention import JointAttention
from tt_impl.layers.feedforward import ParallelFeedForward
from tt_impl.layers.linear import AttentionSizes
from tt_impl.layers.matmul import Residual
from tt_impl.layers.modulation import Modulation
from tt_impl.layers.norm import DistributedLayerNorm
from tt_impl.parallel.context import Context
from tt_impl.parallel.sequence import split_length

_EPS = 1e-6


class SD35Block:
    """``transformer_blocks.{index}`` of diffusers' SD3Transformer2DModel."""

    def __init__(self, weights: Weights, ctx: Context, config: SD35Config, index: int) -> None:
        self._ctx = ctx
        d = config.features
        prefix = f"transformer_blocks.{index}"
        self._dual = index in config.dual_attention_layers
        self._context_pre_only = index == config.num_layers - 1
        sizes = AttentionSizes(d, config.num_attention_heads, config.attention_head_dim)
        qk_norm = config.qk_norm is not None
        self._norm = DistributedLayerNorm(ctx, features=d, eps=_EPS)
        chunks, scales = (9, (1, 4, 7)) if self._dual else (6, (1, 4))
        self._mod = Modulation(weights, ctx, f"{prefix}.norm1.linear", features=d, chunks=chunks, scales=scales)
        chunks, scales = (2, (0,)) if self._context_pre_only else (6, (1, 4))
        self._mod_prompt = Modulation(
            weights, ctx, f"{prefix}.norm1_context.linear", features=d, chunks=chunks, scales=scales
        )
        self._attn = JointAttention(
            weights, ctx, f"{prefix}.attn", sizes, prompt=True, prompt_out=not self._context_pre_only, qk_norm=qk_norm
        )
        self._ff = ParallelFeedForward(weights, ctx, f"{prefix}.ff", features=d, hidden=4 * d)
        if self._dual:
            self._attn2 = JointAttention(
                weights, ctx, f"{prefix}.attn2", sizes, prompt=False, prompt_out=False, qk_norm=qk_norm
            )
        if not self._context_pre_only:
            self._ff_prompt = ParallelFeedForward(weights, ctx, f"{prefix}.ff_context", features=d, hidden=4 * d)

    def __call__(
        self, spatial: ttnn.Tensor, prompt: ttnn.Tensor, time_BD: ttnn.Tensor, *, logical_n: int, logical_l: int | None
    ) -> tuple[ttnn.Tensor, ttnn.Tensor | None]:
        """(B, 1, local N, local D), (B, 1, L, local D), (B, 1, 1, D) with silu applied; no prompt after the last."""
        shift, scale, gate, shift_ff, scale_ff, gate_ff, *dual = self._mod(time_BD)
        further = [(dual[0], dual[1])] if self._dual else []
        normed, *normed2 = self._norm.modulated(spatial, (shift, scale), *further)
        qkv = self._attn.project(normed)
        if self._context_pre_only:
            scale_p, shift_p = self._mod_prompt(time_BD)
        else:
            shift_p, scale_p, gate_p, shift_ff_p, scale_ff_p, gate_ff_p = self._mod_prompt(time_BD)
        (normed_p,) = self._norm.modulated(prompt, (shift_p, scale_p))
        prompt_qkv = self._attn.project(normed_p, prompt=True)

        onto_prompt = None if self._context_pre_only else Residual(prompt, gate_p)
        spatial, prompt = self._attn.attend(
            qkv,
            prompt_qkv,
            logical_n=logical_n,
            logical_l=logical_l,
            onto=Residual(spatial, gate),
            onto_prompt=onto_prompt,
        )
        if self._dual:
            qkv = self._attn2.project(normed2[0])
            spatial, _ = self._attn2.attend(qkv, None, logical_n=logical_n, onto=Residual(spatial, dual[2]))
        (normed,) = self._norm.modulated(spatial, (shift_ff, scale_ff))
        spatial = self._ff.of_shards(normed, Residual(spatial, gate_ff))
        if self._context_pre_only:
            return spatial, None
        (normed_p,) = self._norm.modulated(prompt, (shift_ff_p, scale_ff_p))
        return spatial, self._ff_prompt.of_shards(normed_p, Residual(prompt, gate_ff_p))


def bind_block(
    weights: Weights, ctx: Context, config: SD35Config, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index``, to be called with streams of as many tokens as ``inputs`` have."""
    tokens = {"logical_n": inputs["spatial"].shape[1], "logical_l": split_length(ctx, inputs["prompt"].shape[1])}
    return partial(SD35Block(weights, ctx, config, index), **tokens)
