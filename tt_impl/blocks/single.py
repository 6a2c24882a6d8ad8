"""The single-stream block; counterpart of ``refsim.blocks.single``.

spatial --norm--mod--all_gather--+--> joint attention, MLP --[heads | MLP]--reduce_scatter--gate-->
prompt  --norm--mod--all_gather--'    (the same weights for both streams)

Several products read what is gathered, so it is gathered by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import ttnn

from refsim.blocks.shape import SingleStreamShape
from refsim.files.checkpoint import Weights
from tt_impl.blocks.parts import Modulations, Time, head_norm, stream_norm
from tt_impl.blocks.sequences import Sequences
from tt_impl.layers.attention import StreamQKV, turned
from tt_impl.layers.feedforward import gated
from tt_impl.layers.linear import AttentionSizes, ColParallelLinear, create_heads, pad_to, put_packed
from tt_impl.layers.matmul import Residual, add_gated, matmul, split_matmul
from tt_impl.layers.rope import PairTables
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.ring import QKV
from tt_impl.parallel.tensor import gather_features, reduce_scatter_features
from tt_impl.parallel.usp import joint_attention

Hidden = Callable[[], ttnn.Tensor]
"""Makes the MLP's hidden features (B, 1, rows, local F) when they are needed."""


class SingleStreamBlock:
    """A block such as ``single_transformer_blocks.{index}`` of diffusers' transformers with two streams.

    Args:
        prefix: what the names of its weights begin with.
    """

    def __init__(self, weights: Weights, ctx: Context, shape: SingleStreamShape, prefix: str) -> None:
        self._ctx = ctx
        self._modulations = Modulations(weights, ctx, prefix, shape)
        self._norm = stream_norm(weights, ctx, f"{prefix}.{shape.norm_name}", shape, shape.features)
        self._into: _Into = (_Apart if shape.packed is None else _Packed)(weights, ctx, prefix, shape)
        self._out = AttentionAndMLPOut(weights, ctx, f"{prefix}.{shape.out}", shape)

    def __call__(
        self, spatial: ttnn.Tensor, prompt: ttnn.Tensor, time: Time, *, sequences: Sequences
    ) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """Map (B, 1, local N, local D) and (B, 1, local L, local D) to the same."""
        shift, scale, gate = self._modulations(time, sequences).of("attn")
        normed, normed_p = (
            gather_features(self._ctx, self._norm.modulated(x, (shift, scale))[0]) for x in (spatial, prompt)
        )
        qkv, hidden = self._into(normed, sequences.rotary)
        prompt_qkv, prompt_hidden = self._into(normed_p, sequences.prompt_rotary)
        attn, attn_prompt = joint_attention(self._ctx, qkv, prompt_qkv, **sequences.cut)
        spatial = self._out(attn, hidden(), Residual(spatial, gate))
        return spatial, self._out(attn_prompt, prompt_hidden(), Residual(prompt, gate))


class _Into(Protocol):
    """The linears into attention and the MLP."""

    def __call__(self, x: ttnn.Tensor, rotary: PairTables | None) -> tuple[QKV, Hidden]:
        """Map a stream, normed, modulated and gathered, to heads (B, local heads, rows, E) and the MLP."""


class _Apart:
    """Linears of q, k and v, fused, and another one into the MLP, which is run after attention."""

    def __init__(self, weights: Weights, ctx: Context, prefix: str, shape: SingleStreamShape) -> None:
        self._activation = shape.activation
        attention = f"{prefix}.{shape.attention}"
        sizes = AttentionSizes(shape.features, shape.num_heads, shape.head_dim)
        self._qkv = StreamQKV(weights, ctx, attention, sizes, norm=head_norm(shape), bias=shape.qkv_bias)
        wide = {"in_features": shape.features, "out_features": shape.hidden, "bias": shape.ff_bias}
        self._mlp = ColParallelLinear(weights, ctx, f"{prefix}.{shape.mlp}", gathered_input=True, **wide)

    def __call__(self, x: ttnn.Tensor, rotary: PairTables | None) -> tuple[QKV, Hidden]:
        return self._qkv(x, rotary), partial(self._mlp, x, self._activation)


class _Packed:
    """One linear of q, k, v and the MLP's in, [q | k | v | gate | up] in the checkpoint, as two products of one input.

    A device has [q | k | v] of its heads, and [gate | up] of its lanes: ttnn cuts the columns of a product into equal
    parts only.
    """

    def __init__(self, weights: Weights, ctx: Context, prefix: str, shape: SingleStreamShape) -> None:
        self._ctx = ctx
        self._activation = shape.activation
        sizes = AttentionSizes(shape.features, shape.num_heads, shape.head_dim)
        parts = [sizes.inner] * 3 + [shape.hidden] * 2
        whole = weights.take(f"{prefix}.{shape.packed}.weight", (sum(parts), shape.features)).split(parts)
        width = padded_features(shape.features, ctx.tp)
        self._heads = sizes.padded(ctx) // sizes.head_dim // ctx.tp
        self._qkv = put_packed(ctx, whole[:3], [sizes.padded(ctx)] * 3, width)
        self._mlp = put_packed(ctx, whole[3:], [padded_features(shape.hidden, ctx.tp)] * 2, width)
        norm = head_norm(shape)
        names = (f"{prefix}.{shape.attention}.norm_{n}" for n in "qk")
        self._norms = [norm(weights, ctx, each, features=shape.head_dim) for each in names]

    def __call__(self, x: ttnn.Tensor, rotary: PairTables | None) -> tuple[QKV, Hidden]:
        heads = create_heads(matmul(self._ctx, x, self._qkv, within=True), self._heads)
        hidden = gated(split_matmul(self._ctx, x, self._mlp, None, chunks=2), self._activation)
        return turned(heads, self._norms, rotary), lambda: hidden


class AttentionAndMLPOut:
    """The linear out of a single block: row-parallel, its in features two ranges that are cut one by one.

    checkpoint      [ heads of all devices | MLP of all devices ]
    device d        [ heads of d | MLP of d ]
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, shape: SingleStreamShape) -> None:
        self._ctx = ctx
        self._bias = None
        d = shape.features
        attention = AttentionSizes(d, shape.num_heads, shape.head_dim)
        ranges = [attention.inner, shape.hidden]
        padded = padded_features(d, ctx.tp)
        whole = weights.take(f"{name}.weight", (d, sum(ranges)))
        sizes = (attention.padded(ctx), padded_features(shape.hidden, ctx.tp))
        parts = [
            pad_to(part, padded, size).unflatten(1, (ctx.tp, -1))
            for part, size in zip(whole.split(ranges, 1), sizes, strict=True)
        ]
        self._weight = ctx.put_weight(torch.cat(parts, 2).flatten(1).t()[None, None], tp_dim=2)
        if shape.out_bias:  # the first member adds it, once
            bias = pad_to(weights.take(f"{name}.bias", (d,)), padded * ctx.tp)
            self._bias = ctx.put(bias[None, None, None], tp_dim=3)

    def __call__(self, attention: ttnn.Tensor, mlp: ttnn.Tensor, onto: Residual) -> ttnn.Tensor:
        """(B, local heads, rows, E) and (B, 1, rows, local F) -> (B, 1, rows, local D), added to its stream."""
        both = ttnn.concat([ttnn.experimental.nlp_concat_heads(attention), mlp], dim=3)
        partial_sum = matmul(self._ctx, both, self._weight, self._bias)
        return add_gated(onto, reduce_scatter_features(self._ctx, partial_sum))
