"""The end of a single block of Flux; counterpart of ``refsim.models.flux1.attention``."""

from __future__ import annotations

import torch
import ttnn

from refsim.files.checkpoint import Weights
from refsim.models.flux1.config import FluxConfig
from tt_impl.layers.linear import AttentionSizes, pad_to
from tt_impl.layers.matmul import Residual, add_gated, matmul
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.tensor import reduce_scatter_features


def attention_sizes(config: FluxConfig) -> AttentionSizes:
    """Of every attention of the model."""
    return AttentionSizes(config.features, config.num_attention_heads, config.attention_head_dim)


class AttentionAndMLPOut:
    """``proj_out`` of a single block: row-parallel, its in features two ranges that are cut one by one.

    checkpoint      [ heads of all devices (D)  |  MLP of all devices (4 D) ]
    device d        [ heads of d | MLP of d ]
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, config: FluxConfig) -> None:
        self._ctx = ctx
        d = config.features
        mlp = config.mlp_features
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
