"""Flux's attention, heads cut over tp, image tokens over sp; counterpart of ``refsim.models.flux1.attention``.

image  --q k v--> RMSNorm per head --rotary--.
prompt --q k v--> RMSNorm per head --rotary--+--> joint attention over sp --> heads of each stream side by side
"""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxConfig
from tt_impl.layers.linear import AttentionSizes, ColParallelQKV, RowParallelHeads, pad_to
from tt_impl.layers.matmul import Residual, add_gated, matmul
from tt_impl.layers.norm import RMSNorm
from tt_impl.layers.rope import PairTables, rotate_pairs
from tt_impl.models.flux1.embeddings import Sequences
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.tensor import reduce_scatter_features
from tt_impl.parallel.usp import joint_attention

_EPS = 1e-6
QKV = tuple[ttnn.Tensor, ttnn.Tensor, ttnn.Tensor]


def attention_sizes(config: FluxConfig) -> AttentionSizes:
    """Of every attention of the model."""
    return AttentionSizes(config.features, config.num_attention_heads, config.attention_head_dim)


class RotaryQKV:
    """q, k, v of one stream, (B, local heads, rows, E); q and k normalised per head, then turned by their positions.

    Args:
        names: of the linears of q, k and v.
        norms: names of the norms of q and k.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        prefix: str,
        config: FluxConfig,
        *,
        names: tuple[str, str, str] = ("to_q", "to_k", "to_v"),
        norms: tuple[str, str] = ("norm_q", "norm_k"),
    ) -> None:
        self._qkv = ColParallelQKV(weights, ctx, tuple(f"{prefix}.{n}" for n in names), attention_sizes(config))
        norm = {"features": config.attention_head_dim, "eps": _EPS}
        self._norm_q, self._norm_k = (RMSNorm(weights, ctx, f"{prefix}.{n}", **norm) for n in norms)

    def __call__(self, x: ttnn.Tensor, rotary: PairTables) -> QKV:
        return self._turned(self._qkv(x), rotary)

    def of_shards(self, x: ttnn.Tensor, rotary: PairTables) -> QKV:
        """Of ``x`` (B, 1, rows, local D), gathered on the way."""
        return self._turned(self._qkv.of_shards(x), rotary)

    def _turned(self, qkv: QKV, rotary: PairTables) -> QKV:
        q, k, v = qkv
        return rotate_pairs(self._norm_q(q), rotary), rotate_pairs(self._norm_k(k), rotary), v


def attend(ctx: Context, qkv: QKV, prompt_qkv: QKV, sequences: Sequences) -> tuple[ttnn.Tensor, ttnn.Tensor]:
    """Joint attention; (B, local heads, rows, E) of the image and of the prompt."""
    cut = {"logical_n": sequences.logical_n, "logical_l": sequences.logical_l}
    out, prompt_out = joint_attention(ctx, qkv, prompt_qkv, **cut)
    return out, prompt_out


class DoubleAttention:
    """``transformer_blocks.{index}.attn``: each stream has its own weights, in and out."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, config: FluxConfig) -> None:
        self._ctx, sizes = ctx, attention_sizes(config)
        self._spatial = RotaryQKV(weights, ctx, prefix, config)
        added = {"names": ("add_q_proj", "add_k_proj", "add_v_proj"), "norms": ("norm_added_q", "norm_added_k")}
        self._prompt = RotaryQKV(weights, ctx, prefix, config, **added)
        self._out, self._prompt_out = (
            RowParallelHeads(weights, ctx, f"{prefix}.{name}", sizes) for name in ("to_out.0", "to_add_out")
        )

    def project(self, x: ttnn.Tensor, sequences: Sequences, *, prompt: bool = False) -> QKV:
        """q, k, v of the image's (or the prompt's) tokens (B, 1, rows, local D), gathered on the way."""
        if prompt:
            return self._prompt.of_shards(x, sequences.prompt_rotary)
        return self._spatial.of_shards(x, sequences.rotary)

    def attend(
        self, qkv: QKV, prompt_qkv: QKV, sequences: Sequences, *, onto: Residual, onto_prompt: Residual
    ) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """Results (B, 1, rows, local D), gated and added to their streams."""
        out, prompt_out = attend(self._ctx, qkv, prompt_qkv, sequences)
        return self._out(out, onto), self._prompt_out(prompt_out, onto_prompt)


class AttentionAndMLPOut:
    """``proj_out`` of a single block: row-parallel, its in features two ranges that are cut one by one.

    checkpoint      [ heads of all devices (D)  |  MLP of all devices (4 D) ]
    device d        [ heads of d | MLP of d ]
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, config: FluxConfig) -> None:
        self._ctx = ctx
        d, mlp = config.features, config.mlp_features
        padded = padded_features(d, ctx.tp)
        whole = weights.take(f"{name}.weight", (d, d + mlp))
        sizes = (attention_sizes(config).padded(ctx), padded_features(mlp, ctx.tp))
        parts = [
            pad_to(part, padded, size).unflatten(1, (ctx.tp, -1))
            for part, size in zip(whole.split([d, mlp], 1), sizes, strict=True)
        ]
        self._weight = ctx.put_weight(torch.cat(parts, 2).flatten(1).t()[None, None], tp_dim=2)
        bias = pad_to(weights.take(f"{name}.bias", (d,)), padded * ctx.tp)  # the first member adds it, once
        self._bias = ctx.put(bias[None, None, None], tp_dim=3)

    def __call__(self, attention: ttnn.Tensor, mlp: ttnn.Tensor, onto: Residual) -> ttnn.Tensor:
        """(B, local heads, rows, E) and (B, 1, rows, local F) -> (B, 1, rows, local D), added to its stream."""
        both = ttnn.concat([ttnn.experimental.nlp_concat_heads(attention), mlp], dim=3)
        partial = matmul(self._ctx, both, self._weight, self._bias)
        return add_gated(onto, reduce_scatter_features(self._ctx, partial))
