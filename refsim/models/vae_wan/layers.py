"""Layers of Wan's decoder on this member's part of every frame.

convolution             one halo exchange of the new frames; the past ones keep theirs
norm                    over channels, which are whole: no communication
attention (mid block)   keys and values of a frame gathered over rows and columns, queries local
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from refsim.files.checkpoint import Weights
from refsim.layers.convolution import CausalConv3d, Stream
from refsim.parallel.halo import ImageShards, exchange_halo, gather_image
from refsim.parallel.sdpa import OnlineSoftmax
from refsim.runtime.device import Device, in_module
from refsim.runtime.kernels import kernel


class ChannelNorm:
    """``x / |x| * sqrt(C) * gamma`` over the channels (dim 1), the length in fp32."""

    def __init__(self, weights: Weights, device: Device, name: str, *, channels: int, dims: int) -> None:
        self._device = device
        self._name = name
        self.gamma = weights.take(f"{name}.gamma", (channels, *(1,) * dims)).view(-1, 1, 1, 1)
        self._scale = channels**0.5

    @in_module
    def __call__(self, x: Tensor) -> Tensor:
        with self._device.compute("rms_norm", x, channels_dim=1):
            return _normed(x, self._scale, self.gamma)


@kernel("channel_norm")
def _normed(x: Tensor, scale: float, gamma: Tensor) -> Tensor:
    return F.normalize(x.float(), dim=1).to(x.dtype) * scale * gamma


class FrameAttention:
    """Every pixel of a frame over all pixels of the same frame, one head."""

    def __init__(self, weights: Weights, device: Device, name: str, *, channels: int) -> None:
        self._device = device
        self._name = name
        self._channels = channels
        self._norm = ChannelNorm(weights, device, f"{name}.norm", channels=channels, dims=2)
        self._qkv = [weights.take(f"{name}.to_qkv.weight", (3 * channels, channels, 1, 1)).flatten(1)]
        self._qkv.append(weights.take(f"{name}.to_qkv.bias", (3 * channels,)))
        self._proj = [weights.take(f"{name}.proj.weight", (channels, channels, 1, 1)).flatten(1)]
        self._proj.append(weights.take(f"{name}.proj.bias", (channels,)))

    @in_module
    def __call__(self, x: Tensor, shards: ImageShards) -> Tensor:
        frames = x.shape[2]
        height, width = x.shape[3:]
        qkv = F.linear(self._norm(x).movedim(1, -1), *self._qkv)  # (B, T, H, W, 3 C)
        q, kv = qkv.split((self._channels, 2 * self._channels), -1)
        kv = gather_image(self._device, kv.movedim(-1, 1), shards)
        k, v = kv.movedim(1, -1).flatten(2, 3).flatten(0, 1).unsqueeze(1).chunk(2, -1)  # (B T, 1, all pixels, C)
        state = OnlineSoftmax(self._device, q.flatten(2, 3).flatten(0, 1).unsqueeze(1))
        state.attend_in_blocks(k, v, buffer="frame")
        out = state.result()[0].squeeze(1).unflatten(1, (height, width)).unflatten(0, (-1, frames))
        return x + F.linear(out, *self._proj).movedim(-1, 1)


class Upsample:
    """Twice the height and width (nearest, then a convolution that halves the channels), and twice the time.

    Time is doubled by a causal convolution to two frames per frame, but for the very first frame, which stays one
    and is not seen by that convolution.
    """

    def __init__(self, weights: Weights, device: Device, name: str, *, channels: int, temporal: bool) -> None:
        self._device = device
        self._name = name
        self._time_conv = None
        if temporal:
            self._time_conv = CausalConv3d(
                weights, device, f"{name}.time_conv", in_channels=channels, out_channels=2 * channels, kernel=(3, 1)
            )
        self.weight = weights.take(f"{name}.resample.1.weight", (channels // 2, channels, 3, 3)).unsqueeze(2)
        self.bias = weights.take(f"{name}.resample.1.bias", (channels // 2,))

    @in_module
    def __call__(self, x: Tensor, shards: ImageShards, stream: Stream) -> tuple[Tensor, ImageShards]:
        if self._time_conv is not None and not stream.first:
            pairs = self._time_conv(x, shards, stream).unflatten(1, (2, -1))  # (B, 2, C, T, H, W)
            x = pairs.movedim(1, 3).flatten(2, 3)
        shards = shards.scaled(2)
        x = x.repeat_interleave(2, -2).repeat_interleave(2, -1)
        x = exchange_halo(self._device, x, shards)
        with self._device.compute("conv3d", x, self.weight):
            return F.conv3d(x, self.weight, self.bias), shards
