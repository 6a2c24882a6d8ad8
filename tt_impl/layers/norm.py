"""Norms: per head, over all heads, over gathered features, and over features cut over tp; padding does not count.

Legend: B batch, N rows, H local heads, E features of a head, D features of the stream.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.layers.linear import pad_to
from tt_impl.layers.rope import PairTables
from tt_impl.parallel.context import Context
from tt_impl.parallel.padding import padded_features, padded_heads
from tt_impl.parallel.tensor import gather_features


def pad_features(x: ttnn.Tensor, width: int) -> ttnn.Tensor:
    """(B, 1, rows, D) -> (B, 1, rows, width), zeros behind the real ones."""
    missing = width - x.shape[-1]
    return ttnn.pad(x, [(0, 0), (0, 0), (0, 0), (0, missing)], 0.0) if missing else x


def over_real_features(norm: Callable[[ttnn.Tensor], ttnn.Tensor], x: ttnn.Tensor, features: int) -> ttnn.Tensor:
    """Apply a norm to the first ``features`` columns of a gathered tensor; padded ones stay zero."""
    return norm(x) if x.shape[-1] == features else pad_features(norm(x[:, :, :, :features]), x.shape[-1])


class RMSNorm:
    """Over the features of one head, which are whole on every device."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, features: int, eps: float) -> None:
        self._ctx = ctx
        self._eps = eps
        self._weight = ctx.put(weights.take(f"{name}.weight", (features,))[None, None, None])

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.rms_norm(x, epsilon=self._eps, weight=self._weight, compute_kernel_config=self._ctx.norm_config)


Affine = tuple[Weights, str]
"""Where the weight and the bias of a norm stand in the checkpoint: (weights, name)."""


class DistributedRMSNorm:
    """Of a token over all its heads, which are cut over tp; split into heads and turned by position in the same op.

        (B, 1, N, H * E) --sum of squares, fp32--all_gather over tp--.
                         `-------------------------------------------+--> x * rsqrt(sum / D + eps) * weight
                                                                     --> (B, H, N, E), pairs of each head turned

    ttnn divides by the features that all devices have. Those of padded heads are zero, so only this count is wrong:
    the gathered statistics are scaled by padded / real. The mean over the local heads instead is a silent error.
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, *, num_heads: int, head_dim: int, eps: float) -> None:
        self._ctx = ctx
        self._eps = eps
        heads = padded_heads(num_heads, ctx.tp * ctx.ulysses)
        features = num_heads * head_dim
        self._local_heads = heads // ctx.tp
        self._correction = heads / num_heads
        weight = pad_to(weights.take(f"{name}.weight", (features,)), heads * head_dim)
        self._weight = ctx.put(weight[None], tp_dim=1)

    def __call__(self, x: ttnn.Tensor, rotary: PairTables | None = None) -> ttnn.Tensor:
        """(B, 1, N, H * E) -> (B, H, N, E); ``rotary``: (cos, sin, turn), fp32 or bf16, of the N rows."""
        ctx = self._ctx
        experimental = ttnn.experimental
        stats = experimental.wan_fused_rmsnorm_pre_allgather(
            x, dtype=ttnn.float32, compute_kernel_config=ctx.norm_config
        )
        stats = gather_features(ctx, stats)
        if self._correction != 1.0:
            stats = ttnn.multiply(stats, self._correction)
        samples = x.shape[0]  # the op takes one at a time
        heads = [self._finish(x[i : i + 1], stats[i : i + 1], rotary) for i in range(samples)] if samples > 1 else []
        return ttnn.concat(heads, dim=0) if heads else self._finish(x, stats, rotary)

    def _finish(self, x: ttnn.Tensor, stats: ttnn.Tensor, rotary: PairTables | None) -> ttnn.Tensor:
        cos, sin, turn = rotary or (None, None, None)
        return ttnn.experimental.wan_fused_rmsnorm_post_allgather(
            x,
            stats,
            epsilon=self._eps,
            num_heads_per_device=self._local_heads,
            weight=self._weight,
            transformation_mat=turn,
            rope_cos=cos,
            rope_sin=sin,
            compute_kernel_config=self._ctx.norm_config,
        )


class LayerNorm:
    """Over the real features of a gathered tensor, or over the features of one head.

    Args:
        affine: where weight and bias stand in the checkpoint; None for none.
    """

    def __init__(self, ctx: Context, *, features: int, eps: float, affine: Affine | None = None) -> None:
        self._ctx = ctx
        self._features = features
        self._eps = eps
        self._affine: dict[str, ttnn.Tensor] = {}
        if affine is not None:
            weights, name = affine
            for n in ("weight", "bias"):
                self._affine[n] = ctx.put(weights.take(f"{name}.{n}", (features,))[None, None, None])

    def __call__(self, x: ttnn.Tensor, **affine: ttnn.Tensor) -> ttnn.Tensor:
        """``affine``: weight and bias (1, 1, 1, features) that come with the call."""
        return self._norm(self._real(x), **self._affine, **affine)

    def modulated(self, x: ttnn.Tensor, weight: ttnn.Tensor, bias: ttnn.Tensor) -> ttnn.Tensor:
        """Multiply by a weight and add a bias (B, 1, 1, features) of each sample, in fp32, rounded once; or of each
        row, (B, 1, rows, features), after the norm.
        """
        if weight.shape[2] != 1:
            scaled = ttnn.multiply(self(x), weight, dtype=ttnn.float32)
            return ttnn.add(scaled, bias, dtype=self._ctx.dtype)
        x, samples = self._real(x), x.shape[0]  # the op takes one weight for all rows
        if samples == 1:
            return self._norm(x, weight=weight, bias=bias)
        one = [slice(i, i + 1) for i in range(samples)]
        return ttnn.concat([self._norm(x[i], weight=weight[i], bias=bias[i]) for i in one], dim=0)

    def _norm(self, x: ttnn.Tensor, **affine: ttnn.Tensor) -> ttnn.Tensor:
        return ttnn.layer_norm(x, epsilon=self._eps, compute_kernel_config=self._ctx.norm_config, **affine)

    def _real(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return x if x.shape[-1] == self._features else x[:, :, :, : self._features]


class HeadLayerNorm(LayerNorm):
    """With weight and bias, over the features of one head, which are whole on every device."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, features: int, eps: float) -> None:
        super().__init__(ctx, features=features, eps=eps, affine=(weights, name))


class DistributedLayerNorm:
    """Over features cut over tp.

    ttnn's pair of ops gathers sum(x) and sum(x^2) and divides by the number of features it sees, with padding. Padded
    features are zero, so both sums are right and only the count is not: the gathered statistics are scaled by
    padded / real before the second op. A mask keeps the padded ones zero; where the norm has a weight and a bias, they
    are zero there and no mask is needed. Modulation takes weight and bias in: both are vectors, x is not touched twice.

    Args:
        affine: where weight and bias stand in the checkpoint; None for none.
    """

    def __init__(self, ctx: Context, *, features: int, eps: float, affine: Affine | None = None) -> None:
        self._ctx = ctx
        self._eps = eps
        padded = padded_features(features, ctx.tp)
        self._correction = padded / features
        self._local = None
        self._mask = None
        self._affine: dict[str, ttnn.Tensor] = {}
        if ctx.tp == 1:
            self._local = LayerNorm(ctx, features=features, eps=eps)
        if affine is not None:
            weights, name = affine
            for n in ("weight", "bias"):
                values = pad_to(weights.take(f"{name}.{n}", (features,)), padded)
                self._affine[n] = ctx.put(values[None, None, None], tp_dim=3)
        elif padded != features:
            mask = (torch.arange(padded) < features).float()
            self._mask = ctx.put(mask[None, None, None], tp_dim=3)

    def modulated(self, x: ttnn.Tensor, *by: tuple[ttnn.Tensor, ttnn.Tensor]) -> list[ttnn.Tensor]:
        """``norm(x) * factor + shift`` for every (shift, factor) in ``by``, from the same statistics.

        ``x`` (B, 1, rows, local D), shift and factor (B, 1, 1 or rows, local D); factor is 1 + scale in real features
        and 0 in padded ones, so that no mask is needed. Without padding, and with one factor for all rows, the norm and
        the modulation are one op, from mean and variance by Welford's recurrence.
        """
        ctx = self._ctx
        batch = x.shape[0]
        if self._affine:
            by = tuple(self._with_affine(*pair) for pair in by)
        if self._local is not None and batch == 1:
            return [self._local.modulated(x, factor, shift) for shift, factor in by]
        if self._local is not None or self._correction != 1 or by[0][1].shape[2] != 1:
            y = self._normalised(x)
            return [ttnn.add(ttnn.multiply(y, factor), shift) for shift, factor in by]
        return _modulated(ctx, x, *by, eps=self._eps)

    def _with_affine(self, shift: ttnn.Tensor, factor: ttnn.Tensor) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """``(y * weight + bias) * factor + shift`` as a shift and a factor of y."""
        weight = self._affine["weight"]
        bias = self._affine["bias"]
        return ttnn.add(ttnn.multiply(bias, factor), shift), ttnn.multiply(weight, factor)

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        y = self._normalised(x, **self._affine)
        return y if self._mask is None else ttnn.multiply(y, self._mask)

    def _normalised(self, x: ttnn.Tensor, **affine: ttnn.Tensor) -> ttnn.Tensor:
        """Without the mask: padded features hold -mean / deviation."""
        ctx = self._ctx
        if self._local is not None:
            return self._local(x, **affine)
        stats = ttnn.layer_norm_pre_all_gather(x, compute_kernel_config=ctx.norm_config)
        stats = gather_features(ctx, stats)
        if self._correction != 1:
            stats = ttnn.multiply(stats, self._correction)
        return ttnn.layer_norm_post_all_gather(
            x, stats, epsilon=self._eps, compute_kernel_config=ctx.norm_config, **affine
        )


class DistributedStreamRMSNorm:
    """Root mean square of a stream's features, which are cut over tp; no weight of its own.

        (B, 1, N, local D) --sum of squares, fp32--all_gather over tp--> x * rsqrt(sum / D + eps) * factor

    A factor that comes with the call is part of the second op. ttnn divides by the features that all devices have; the
    gathered sums are scaled by padded / real, and padded features, which are zero, stay zero.
    """

    def __init__(self, ctx: Context, *, features: int, eps: float) -> None:
        self._ctx = ctx
        self._eps = eps
        self._correction = padded_features(features, ctx.tp) / features

    def modulated(self, x: ttnn.Tensor, *by: tuple[ttnn.Tensor | None, ttnn.Tensor]) -> list[ttnn.Tensor]:
        """``norm(x) * factor + shift`` for every (shift or None, factor) in ``by``, from the same statistics; shift and
        factor (B, 1, 1, local D).
        """
        stats = self._statistics(x)
        scaled = [(shift, self._finish(x, stats, factor)) for shift, factor in by]
        return [y if shift is None else ttnn.add(y, shift) for shift, y in scaled]

    def __call__(self, x: ttnn.Tensor) -> ttnn.Tensor:
        return self._finish(x, self._statistics(x), None)

    def _statistics(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """Return the sum of squares of all devices' features, (B, 1, N, 32 each) in fp32."""
        config = self._ctx.norm_config
        stats = ttnn.experimental.wan_fused_rmsnorm_pre_allgather(x, dtype=ttnn.float32, compute_kernel_config=config)
        stats = gather_features(self._ctx, stats)
        return stats if self._correction == 1 else ttnn.multiply(stats, self._correction)

    def _finish(self, x: ttnn.Tensor, stats: ttnn.Tensor, factor: ttnn.Tensor | None) -> ttnn.Tensor:
        """Norm sample by sample, as the op takes one at a time."""
        normed = [
            ttnn.experimental.wan_fused_rmsnorm_post_allgather(
                x[i : i + 1],
                stats[i : i + 1],
                epsilon=self._eps,
                num_heads_per_device=1,
                weight=None if factor is None else ttnn.reshape(factor[i : i + 1], (1, factor.shape[3])),
                compute_kernel_config=self._ctx.norm_config,
            )
            for i in range(x.shape[0])
        ]
        return normed[0] if len(normed) == 1 else ttnn.concat(normed, dim=0)


class ModulatedLayerNorm:
    """Over features cut over tp, then times a weight and plus a bias that come with the call, all of it in fp32.

        (B, 1, N, local D) --mean, variance of local features--all_gather over tp--> normalised * weight + bias, bf16

    One op each before and after the gather. It merges the devices' means as if all had as many features, and takes
    one weight for all rows; where the last devices have fewer, or each row has a weight, :class:`DistributedLayerNorm`
    makes the sums and weight and bias are applied after it.
    """

    def __init__(self, ctx: Context, *, features: int, eps: float) -> None:
        self._ctx = ctx
        self._eps = eps
        self._uneven = padded_features(features, ctx.tp) != features
        self._plain = DistributedLayerNorm(ctx, features=features, eps=eps)

    def __call__(self, x: ttnn.Tensor, weight: ttnn.Tensor, bias: ttnn.Tensor) -> ttnn.Tensor:
        """``weight`` and ``bias`` (B or 1, 1, 1 or N, local D) in fp32, 0 in padding, which therefore stays 0."""
        ctx = self._ctx
        if self._uneven or weight.shape[2] != 1:
            scaled = ttnn.multiply(self._plain(x), weight, dtype=ttnn.float32)
            return ttnn.add(scaled, bias, dtype=ctx.dtype)
        return _modulated(ctx, x, (bias, weight), eps=self._eps)[0]


def _modulated(ctx: Context, x: ttnn.Tensor, *by: tuple[ttnn.Tensor, ttnn.Tensor], eps: float) -> list[ttnn.Tensor]:
    """``norm(x) * factor + shift`` for every (shift, factor), one op each after one gather of the statistics."""
    batch = x.shape[0]
    x = _batch_before_rows(x)
    config = {"compute_kernel_config": ctx.norm_config}
    stats = ttnn.experimental.dit_layernorm_pre_allgather(x, ctx.reciprocals(x.shape[3]), **config)
    stats = gather_features(ctx, stats)
    results = []
    for shift, factor in by:
        weight, bias = map(_batch_before_rows, (factor, shift))
        y = ttnn.experimental.dit_layernorm_post_allgather(x, stats, weight=weight, bias=bias, epsilon=eps, **config)
        results.append(_batch_first(y, batch))
    return results


def _batch_before_rows(x: ttnn.Tensor) -> ttnn.Tensor:
    """(B, 1, rows, D) -> (1, B, rows, D), where ttnn's norms look for one factor per batch entry."""
    return x if x.shape[0] == 1 else ttnn.reshape(x, (1, x.shape[0], *tuple(x.shape)[2:]))


def _batch_first(x: ttnn.Tensor, batch: int) -> ttnn.Tensor:
    """Undo :func:`_batch_before_rows`."""
    return x if batch == 1 else ttnn.reshape(x, (batch, 1, *tuple(x.shape)[2:]))
