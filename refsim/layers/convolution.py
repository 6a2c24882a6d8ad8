"""Convolutions of images and videos cut by rows and columns: the neighbours' borders come first, then the arithmetic.

    in space    one halo exchange of ``kernel // 2`` rows and columns, zeros at the picture's own border
    in time     [frames before, kept | new frames] --> no look into the future, chunk by chunk as in one go

    in channels, where the tp group holds those (images): column-parallel

        x (channels of 0) --.                   .-- W[out channels of 0] --> out channels of 0
                            |-- all_gather --> x
        x (channels of 1) --'                   '-- W[out channels of 1] --> out channels of 1

Otherwise each device holds the whole kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from refsim.ccl import all_gather
from refsim.files.checkpoint import Weights
from refsim.parallel.halo import ImageShards, exchange_halo
from refsim.parallel.tensor import shard_range
from refsim.runtime.device import Device, in_module


@dataclass
class Stream:
    """One video on its way through a decoder.

    Attributes:
        past: per convolution the frames before the next chunk, halos included.
        first: the chunk under way is the first one.
    """

    past: dict[str, Tensor] = field(default_factory=dict)
    first: bool = True


class Conv2d:
    """Convolution of (B, C, local H, local W) with an odd kernel.

    Args:
        gathers: what arrives is cut by channel over tp.
        cuts: what leaves is.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        in_channels: int,
        out_channels: int,
        kernel: int = 3,
        gathers: bool = False,
        cuts: bool = False,
    ) -> None:
        self._device = device
        self._name = name
        self._kernel = kernel
        self._gathers = gathers
        mine = shard_range(out_channels, device.groups["tp"]) if cuts else None
        self.weight = weights.take(f"{name}.weight", (out_channels, in_channels, kernel, kernel), mine)
        self.bias = weights.take(f"{name}.bias", (out_channels,), mine)

    @in_module
    def __call__(self, x: Tensor, shards: ImageShards) -> Tensor:
        if self._gathers:
            x = all_gather(self._device, x.contiguous(), self._device.groups["tp"], dim=1)
        if self._kernel > 1:
            x = exchange_halo(self._device, x, shards, by=self._kernel // 2)
        with self._device.compute("conv2d", x, self.weight):
            return F.conv2d(x, self.weight, self.bias)


class CausalConv3d:
    """Convolution of (B, C, T, local H, local W), causal in time.

    Args:
        kernel: (time, space).
        before: what stands before the first frame: ``zeros``, or the first frame itself, repeated (``first``).
        border: what stands around a frame, see :func:`refsim.parallel.halo.exchange_halo`.
    """

    def __init__(
        self,
        weights: Weights,
        device: Device,
        name: str,
        *,
        in_channels: int,
        out_channels: int,
        kernel: tuple[int, int] = (3, 3),
        before: Literal["zeros", "first"] = "zeros",
        border: Literal["zeros", "edge"] = "zeros",
    ) -> None:
        self._device = device
        self._name = name
        self._before = before
        self._border = border
        self._time, self._space = kernel
        self.weight = weights.take(f"{name}.weight", (out_channels, in_channels, kernel[0], kernel[1], kernel[1]))
        self.bias = weights.take(f"{name}.bias", (out_channels,))

    @in_module
    def __call__(self, x: Tensor, shards: ImageShards, stream: Stream) -> Tensor:
        if self._space != 1:
            x = exchange_halo(self._device, x, shards, by=self._space // 2, border=self._border)
        if self._time != 1:
            past_frames = self._time - 1
            past = stream.past.get(self._name)
            if past is None:
                past = x[:, :, :1].expand(-1, -1, past_frames, -1, -1)
                past = past if self._before == "first" else torch.zeros_like(past)
            x = torch.cat([past, x], 2)
            stream.past[self._name] = x[:, :, -past_frames:].clone()
        with self._device.compute("conv3d", x, self.weight):
            return F.conv3d(x, self.weight, self.bias)
