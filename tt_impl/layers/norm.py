"""Norms: per head, over gathered features, and over features cut over tp with padded lanes left out of the count."""

from __future__ import annotations

from collections.abc import Callable

import torch
import ttnn

from refsim.checkpoint import Weights
from tt_impl.layers.linear import pad_to
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features
from tt_impl.parallel.tensor import gather_features


def pad_lanes(x: ttnn.Tensor, lanes: int) -> ttnn.Tensor:
    """(B, 1, rows, D) -> (B, 1, rows, lanes), zeros behind the real ones."""
    missing = lanes - x.shape[-1]
    return ttnn.pad(x, [(0, 0), (0, 0), (0, 0), (0, missing)], 0.0) if missing else x


def over_real_lanes(norm: Callable[[ttnn.Tensor], ttnn.Tensor], x: ttnn.Tensor, features: int) -> ttnn.Tensor:
    """A norm of the first ``features`` lanes of a gathered tensor; padded lanes stay zero."""
    return norm(x) if x.shape[-1] == features else pad_lanes(norm(x[:, :, :, :features]), x.shape[-1])


class RMSNorm:
    """Over the features of one head, which are whole on every device."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, features: int, eps: float) -> None:
        self._ctx, self._eps = ctx, eps
        self._weight = ctx.put(weights.take(f"{name}.weight", (features,))[None, None, None])

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.rms_norm(x, epsilon=self._eps, weight=self._weight, compute_kernel_config=self._ctx.norm_config)


Affine = tuple[Weights, str]
"""Where the weight and the bias of a norm stand in the checkpoint: (weights, name)."""


class LayerNorm:
    """Over the real lanes of a gathered tensor, or over the features of one head.

    Args:
        affine: where weight and bias stand in the checkpoint; None for none.
    """

    def __init__(self, ctx: Context, *, features: int, eps: float, affine: Affine | None = None) -> None:
        self._ctx, self._features, self._eps = ctx, features, eps
        self._affine: dict[str, ttnn.Tensor] = {}
        if affine is not None:
            weights, name = affine
            for n in ("weight", "bias"):
                self._affine[n] = ctx.put(weights.take(f"{name}.{n}", (features,))[None, None, None])

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        if x.shape[-1] != self._features:
            x = x[:, :, :, : self._features]
        return ttnn.layer_norm(x, epsilon=self._eps, compute_kernel_config=self._ctx.norm_config, **self._affine)


class DistributedLayerNorm:
    """Over features cut over tp.

    ttnn's pair of ops gathers sum(x) and sum(x^2) and divides by the number of lanes it sees, padding included. Padded
    lanes are zero, so both sums are right and only the count is not: the gathered statistics are scaled by
    padded / real before the second op. A mask keeps the padded lanes zero; where the norm has a weight and a bias, they
    are zero there and no mask is needed.

    Args:
        affine: where weight and bias stand in the checkpoint; None for none.
    """

    def __init__(self, ctx: Context, *, features: int, eps: float, affine: Affine | None = None) -> None:
        self._ctx, self._eps = ctx, eps
        padded = padded_features(features, ctx.tp)
        self._correction = padded / features
        self._local = self._mask = None
        self._affine: dict[str, ttnn.Tensor] = {}
        if ctx.tp == 1:
            self._local = LayerNorm(ctx, features=features, eps=eps, affine=affine)
        elif affine is not None:
            weights, name = affine
            for n in ("weight", "bias"):
                lanes = pad_to(weights.take(f"{name}.{n}", (features,)), padded)
                self._affine[n] = ctx.put(lanes[None, None, None], tp_dim=3)
        elif padded != features:
            lanes = (torch.arange(padded) < features).float()
            self._mask = ctx.put(lanes[None, None, None], tp_dim=3)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        ctx = self._ctx
        if self._local is not None:
            return self._local(x)
        stats = ttnn.layer_norm_pre_all_gather(x, dtype=ttnn.bfloat16, compute_kernel_config=ctx.norm_config)
        stats = gather_features(ctx, stats)
        if self._correction != 1:
            stats = ttnn.multiply(stats, self._correction)
        y = ttnn.layer_norm_post_all_gather(
            x, stats, epsilon=self._eps, compute_kernel_config=ctx.norm_config, **self._affine
        )
        return y if self._mask is None else ttnn.multiply(y, self._mask)
