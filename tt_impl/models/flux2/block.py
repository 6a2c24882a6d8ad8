"""FLUX.2's two kinds of block; counterpart of ``refsim.models.flux2.block``.

double   spatial --LN--mod--all_gather--+--> joint attention --reduce_scatter--gate--+--LN--mod--all_gather--FF--gate-->
         prompt  --LN--mod--all_gather--'         (same, its own weights)            '

single   spatial --LN--mod--all_gather--[q k v | gate up]--+--> joint attention, SwiGLU --[heads | MLP]--reduce_scatter
         prompt  --LN--mod--all_gather--[q k v | gate up]--'    (the same weights for both streams)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux2.config import Flux2Config
from tt_impl.blocks.double import DoubleStreamBlock
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.attention import turned
from tt_impl.layers.feedforward import gated
from tt_impl.layers.linear import AttentionSizes, pad_to
from tt_impl.layers.matmul import Residual, add_gated, matmul, split_matmul
from tt_impl.layers.modulation import Modulation
from tt_impl.layers.norm import DistributedLayerNorm, RMSNorm
from tt_impl.models.flux1.embeddings import sequences_of
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.ring import QKV
from tt_impl.parallel.tensor import gather_features, reduce_scatter_features
from tt_impl.parallel.usp import joint_attention

Streams = tuple[ttnn.Tensor, ttnn.Tensor]
Chunks = list[ttnn.Tensor]


def _sizes(config: Flux2Config) -> AttentionSizes:
    return AttentionSizes(config.features, config.num_attention_heads, config.attention_head_dim)


def _put_packed(ctx: Context, parts: Sequence[torch.Tensor], sizes: Sequence[int], width: int) -> ttnn.Tensor:
    """Put parts (out, in) of one column-parallel weight: a device has its lanes of each, one part after the other.

    ``sizes``: of the parts, ``width`` of the in features, with padding.
    """
    padded = [pad_to(part, size, width).unflatten(0, (ctx.tp, -1)) for part, size in zip(parts, sizes, strict=True)]
    return ctx.put_weight(torch.cat(padded, 1).flatten(0, 1).t()[None, None], tp_dim=3)


class Modulations:
    """The linears of the time step that all blocks of a kind share."""

    def __init__(self, weights: Weights, ctx: Context, config: Flux2Config) -> None:
        kinds = {"double_stream_modulation_img": 6, "double_stream_modulation_txt": 6, "single_stream_modulation": 3}
        sizes = {"features": config.features, "bias": False}
        *self._double, self._single = (
            Modulation(weights, ctx, f"{name}.linear", chunks=chunks, scales=(1, 4)[: chunks // 3], **sizes)
            for name, chunks in kinds.items()
        )

    def double(self, time_BD: ttnn.Tensor) -> list[Chunks]:
        """Return the chunks of the image and of the prompt in double blocks; ``time_BD`` with silu applied."""
        return [modulation(time_BD) for modulation in self._double]

    def single(self, time_BD: ttnn.Tensor) -> list[Chunks]:
        """Return the chunks of both streams in single blocks."""
        return [self._single(time_BD)]


class QKVAndMLP:
    """``to_qkv_mlp_proj`` of a single block, [q | k | v | gate | up] in the checkpoint, as two products of one input.

    A device has [q | k | v] of its heads, and [gate | up] of its lanes: ttnn cuts the columns of a product into equal
    parts only.
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, config: Flux2Config) -> None:
        self._ctx = ctx
        d = config.features
        hidden = config.mlp_features
        sizes = _sizes(config)
        whole = weights.take(f"{name}.weight", (3 * d + 2 * hidden, d))
        width = padded_features(d, ctx.tp)
        self._heads = sizes.padded(ctx) // sizes.head_dim // ctx.tp
        self._qkv = _put_packed(ctx, whole[: 3 * d].chunk(3), [sizes.padded(ctx)] * 3, width)
        self._mlp = _put_packed(ctx, whole[3 * d :].chunk(2), [padded_features(hidden, ctx.tp)] * 2, width)

    def __call__(self, x: ttnn.Tensor) -> tuple[QKV, ttnn.Tensor]:
        """(B, 1, rows, D) gathered -> three (B, local heads, rows, E), and (B, 1, rows, local F) with its gate."""
        qkv = ttnn.experimental.nlp_create_qkv_heads(
            matmul(self._ctx, x, self._qkv, within=True),
            num_heads=self._heads,
            num_kv_heads=self._heads,
            transpose_k_heads=False,
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )
        return qkv, gated(split_matmul(self._ctx, x, self._mlp, None, chunks=2), "swiglu_gate_first")


class AttentionAndMLPOut:
    """``to_out`` of a single block: row-parallel, its in features two ranges that are cut one by one.

    checkpoint      [ heads of all devices (D)  |  MLP of all devices (F) ]
    device d        [ heads of d | MLP of d ]
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, config: Flux2Config) -> None:
        self._ctx = ctx
        d = config.features
        hidden = config.mlp_features
        padded = padded_features(d, ctx.tp)
        whole = weights.take(f"{name}.weight", (d, d + hidden))
        sizes = (_sizes(config).padded(ctx), padded_features(hidden, ctx.tp))
        parts = [
            pad_to(part, padded, size).unflatten(1, (ctx.tp, -1))
            for part, size in zip(whole.split([d, hidden], 1), sizes, strict=True)
        ]
        self._weight = ctx.put_weight(torch.cat(parts, 2).flatten(1).t()[None, None], tp_dim=2)

    def __call__(self, attention: ttnn.Tensor, mlp: ttnn.Tensor, onto: Residual) -> ttnn.Tensor:
        """(B, local heads, rows, E) and (B, 1, rows, local F) -> (B, 1, rows, local D), added to its stream."""
        both = ttnn.concat([ttnn.experimental.nlp_concat_heads(attention), mlp], dim=3)
        return add_gated(onto, reduce_scatter_features(self._ctx, matmul(self._ctx, both, self._weight)))


class SingleBlock:
    """``single_transformer_blocks.{index}`` of diffusers' Flux2Transformer2DModel."""

    def __init__(self, weights: Weights, ctx: Context, config: Flux2Config, index: int) -> None:
        self._ctx = ctx
        prefix = f"single_transformer_blocks.{index}.attn"
        self._norm = DistributedLayerNorm(ctx, features=config.features, eps=config.eps)
        self._in = QKVAndMLP(weights, ctx, f"{prefix}.to_qkv_mlp_proj", config)
        self._norms = [
            RMSNorm(weights, ctx, f"{prefix}.{name}", features=config.attention_head_dim, eps=config.eps)
            for name in ("norm_q", "norm_k")
        ]
        self._out = AttentionAndMLPOut(weights, ctx, f"{prefix}.to_out", config)

    def __call__(
        self, spatial: ttnn.Tensor, prompt: ttnn.Tensor, modulation: list[Chunks], *, sequences: Sequences
    ) -> Streams:
        """(B, 1, local N, local D) and (B, 1, L, local D) in and out."""
        ((shift, scale, gate),) = modulation
        # Two products read what is gathered, so it is gathered by itself.
        (qkv, hidden), (qkv_p, hidden_p) = (
            self._in(gather_features(self._ctx, self._norm.modulated(x, (shift, scale))[0])) for x in (spatial, prompt)
        )
        qkv = turned(qkv, self._norms, sequences.rotary)
        qkv_p = turned(qkv_p, self._norms, sequences.prompt_rotary)
        attn, attn_p = joint_attention(self._ctx, qkv, qkv_p, **sequences.cut)
        spatial = self._out(attn, hidden, Residual(spatial, gate))
        return spatial, self._out(attn_p, hidden_p, Residual(prompt, gate))


def bind_block(
    weights: Weights, ctx: Context, config: Flux2Config, index: int, inputs: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    """Block ``index``, single ones counted on from the double ones, for the positions ``img_ids`` and ``txt_ids``."""
    sequences = sequences_of(ctx, config, inputs["img_ids"], inputs["txt_ids"])
    modulations = Modulations(weights, ctx, config)
    modulation = modulations.double if index < config.num_layers else modulations.single
    block = partial(build_block(weights, ctx, config, index), sequences=sequences)
    return lambda spatial, prompt, time_BD: block(spatial, prompt, modulation(time_BD))


def build_block(weights: Weights, ctx: Context, config: Flux2Config, index: int) -> DoubleStreamBlock | SingleBlock:
    """Block ``index`` in the order they run."""
    if index < config.num_layers:
        return DoubleStreamBlock(weights, ctx, config.double_block(), f"transformer_blocks.{index}")
    return SingleBlock(weights, ctx, config, index - config.num_layers)
