"""Flux's two kinds of block; counterpart of ``refsim.models.flux1.block``.

double   spatial --LN--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate-->
         prompt  --LN--mod--all_gather--'         (same, its own weights)            '

single   spatial --LN--mod--all_gather--+--> joint attention, MLP --[heads | mlp]--reduce_scatter--gate-->
         prompt  --LN--mod--all_gather--'    (the same weights for both streams)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxConfig
from tt_impl.blocks.double import DoubleStreamBlock
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.attention import StreamQKV
from tt_impl.layers.linear import ColParallelLinear
from tt_impl.layers.matmul import Residual
from tt_impl.layers.modulation import Modulation
from tt_impl.layers.norm import DistributedLayerNorm
from tt_impl.models.flux1.attention import AttentionAndMLPOut, attention_sizes
from tt_impl.models.flux1.embeddings import sequences_of
from tt_impl.parallel.context import Context
from tt_impl.parallel.tensor import gather_features
from tt_impl.parallel.usp import joint_attention

_EPS = 1e-6
Streams = tuple[ttnn.Tensor, ttnn.Tensor]


class SingleBlock:
    """``single_transformer_blocks.{index}`` of diffusers' FluxTransformer2DModel."""

    def __init__(self, weights: Weights, ctx: Context, config: FluxConfig, index: int) -> None:
        self._ctx = ctx
        d = config.features
        prefix = f"single_transformer_blocks.{index}"
        self._norm = DistributedLayerNorm(ctx, features=d, eps=_EPS)
        self._mod = Modulation(weights, ctx, f"{prefix}.norm.linear", features=d, chunks=3, scales=(1,))
        self._qkv = StreamQKV(weights, ctx, f"{prefix}.attn", attention_sizes(config))
        self._mlp = ColParallelLinear(
            weights, ctx, f"{prefix}.proj_mlp", in_features=d, out_features=config.mlp_features, gathered_input=True
        )
        self._out = AttentionAndMLPOut(weights, ctx, f"{prefix}.proj_out", config)

    def __call__(
        self, spatial: ttnn.Tensor, prompt: ttnn.Tensor, time_BD: ttnn.Tensor, *, sequences: Sequences
    ) -> Streams:
        """(B, 1, local N, local D) and (B, 1, L, local D) in and out; ``time_BD`` (B, 1, 1, D) with silu applied."""
        shift, scale, gate = self._mod(time_BD)
        # Both the attention and the MLP read what is gathered, so it is gathered by itself.
        normed, normed_p = (
            gather_features(self._ctx, self._norm.modulated(x, (shift, scale))[0]) for x in (spatial, prompt)
        )
        qkv = self._qkv(normed, sequences.rotary)
        prompt_qkv = self._qkv(normed_p, sequences.prompt_rotary)
        attn, attn_p = joint_attention(self._ctx, qkv, prompt_qkv, **sequences.cut)
        spatial = self._out(attn, self._mlp(normed, "gelu_tanh"), Residual(spatial, gate))
        return spatial, self._out(attn_p, self._mlp(normed_p, "gelu_tanh"), Residual(prompt, gate))


def bind_block(
    weights: Weights, ctx: Context, config: FluxConfig, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(ctx, config, inputs["img_ids"], inputs["txt_ids"])
    return partial(build_block(weights, ctx, config, index), sequences=sequences)


def build_block(weights: Weights, ctx: Context, config: FluxConfig, index: int) -> DoubleStreamBlock | SingleBlock:
    """Block ``index`` in the order they run."""
    if index < config.num_layers:
        return DoubleStreamBlock(weights, ctx, config.double_block(), f"transformer_blocks.{index}")
    return SingleBlock(weights, ctx, config, index - config.num_layers)
