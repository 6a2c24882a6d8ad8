"""Layers of Wan's decoder on this device's part of every frame; counterpart of ``refsim.models.vae_wan.layers``.

convolution             one halo exchange of the new frames; the past ones keep theirs
norm                    over channels, which are whole: no communication; with SiLU one op
attention (mid block)   keys and values of a frame gathered over rows and columns, queries local
"""

from __future__ import annotations

import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.layers.conv3d import Conv3d
from tt_impl.layers.convolution import CausalConv3d, Stream
from tt_impl.layers.pixels import PixelAttention
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, exchange_halo, to_image, zero_padding

_SHORTEST = 1e-12
_SILU = ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU)


class ChannelNorm:
    """``x / |x| * sqrt(C) * gamma`` over the channels of rows (B, 1, N, C): an RMS norm."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, channels: int, dims: int) -> None:
        self._ctx = ctx
        gamma = weights.take(f"{name}.gamma", (channels, *(1,) * dims)).flatten()
        self._gamma = ctx.put(gamma[None, None, None])

    def __call__(self, x: ttnn.Tensor, *, silu: bool = False) -> ttnn.Tensor:
        """Rows of the same shape, through SiLU if asked for."""
        how = {"epsilon": _SHORTEST, "weight": self._gamma, "compute_kernel_config": self._ctx.norm_config}
        if silu:
            return ttnn.experimental.dit_rms_norm_unary_fused(x, activation=_SILU, **how)
        return ttnn.rms_norm(x, **how)


class FrameAttention:
    """Every pixel of a frame over all pixels of the same frame, one head."""

    def __init__(self, weights: Weights, ctx: Context, name: str, *, channels: int) -> None:
        self._norm = ChannelNorm(weights, ctx, f"{name}.norm", channels=channels, dims=2)
        qkv = weights.take(f"{name}.to_qkv.weight", (3 * channels, channels, 1, 1)).flatten(1)
        proj = weights.take(f"{name}.proj.weight", (channels, channels, 1, 1)).flatten(1)
        self._attention = PixelAttention(
            ctx,
            (qkv, weights.take(f"{name}.to_qkv.bias", (3 * channels,))),
            (proj, weights.take(f"{name}.proj.bias", (channels,))),
            channels=channels,
        )

    def __call__(self, x: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
        """Rows (B, 1, N, C) of one frame each, as the decoder's mid block has no more at a time."""
        return ttnn.add(x, self._attention(self._norm(x), shards))


class Upsample:
    """Twice the height and width (nearest, then a convolution that halves the channels), and twice the time.

    Time is doubled by a causal convolution to two frames per frame, but for the very first frame, which stays one
    and is not seen by that convolution.

        rows (B, 1, T H W, 2 C) --as (B T, H W, 2, C)--> swap pixels and pairs --> (2 B T, H, W, C)
    """

    def __init__(self, weights: Weights, ctx: Context, name: str, *, channels: int, temporal: bool) -> None:
        self._ctx = ctx
        self._channels = channels
        self._time_conv = None
        if temporal:
            self._time_conv = CausalConv3d(
                weights, ctx, f"{name}.time_conv", in_channels=channels, out_channels=2 * channels, kernel=(3, 1)
            )
        weight = weights.take(f"{name}.resample.1.weight", (channels // 2, channels, 3, 3)).unsqueeze(2)
        self._conv = Conv3d(ctx, weight, weights.take(f"{name}.resample.1.bias", (channels // 2,)))

    def __call__(self, x: ttnn.Tensor, shards: ImageShards, stream: Stream) -> tuple[ttnn.Tensor, ImageShards]:
        """Rows in, rows of twice the pixels a side out, and the cut they have."""
        samples = x.shape[0]
        if self._time_conv is not None and not stream.first:
            pairs = to_image(zero_padding(self._ctx, self._time_conv(x, shards, stream), shards), shards)
            images = self._in_turn(pairs)
        else:
            images = to_image(zero_padding(self._ctx, x, shards), shards)
        shards = shards.scaled(2)
        images, padding = exchange_halo(self._ctx, ttnn.upsample(images, 2), shards)
        video = ttnn.reshape(images, (samples, -1, *tuple(images.shape)[1:]))
        return self._conv(video, padding=(0, *padding)), shards

    def _in_turn(self, pairs: ttnn.Tensor) -> ttnn.Tensor:
        """Images (B T, H, W, 2 C) that hold two frames each -> (2 B T, H, W, C), one after the other."""
        images, height, width, _ = pairs.shape
        frames = ttnn.permute(ttnn.reshape(pairs, (images, height * width, 2, self._channels)), (0, 2, 1, 3))
        return ttnn.reshape(frames, (2 * images, height, width, self._channels))
