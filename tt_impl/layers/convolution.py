"""Convolutions of images and videos cut by rows and columns: the neighbours' borders come first, then the arithmetic.

    in space    rows (tiles) --padding to zero--> image (row-major) --halo of kernel // 2--> ttnn.conv2d --> rows

    in time     [frames before, kept | new frames] --> no look into the future, chunk by chunk as in one go
                       ^--- the last J - 1 of what went in, halos included, stay on the device for the next chunk

    in channels, where the tp axis holds those: column-parallel

        x (channels of 0) --.                   .-- W[out channels of 0] --> out channels of 0
                            |-- all_gather --> x
        x (channels of 1) --'                   '-- W[out channels of 1] --> out channels of 1

A convolution of 1 is a linear on rows, and needs no border. Otherwise each device holds the whole kernel.

Legend: B samples, T frames, N local pixels of all frames, H and W local rows and columns, C channels, O channels out,
J frames that a kernel spans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import ttnn

from refsim.files.checkpoint import Weights
from tt_impl.layers.conv3d import Conv3d
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, exchange_halo, to_image, zero_padding
from tt_impl.parallel.tensor import gather_features


@dataclass
class Stream:
    """One video on its way through a decoder.

    Attributes:
        past: per convolution the frames before the next chunk, halos included, on the device.
        first: the chunk under way is the first one.
    """

    past: dict[str, ttnn.Tensor] = field(default_factory=dict)
    first: bool = True


@dataclass
class _Prepared:
    """Weight and bias as ttnn.conv2d laid them out for one size of image."""

    weight: ttnn.Tensor
    bias: ttnn.Tensor


class Conv2d:
    """Convolution with an odd kernel of rows (B, 1, N, C), or of an image (B, H, W, C) whose padding is zero.

    Args:
        gathers: what arrives is cut by channel over tp.
        cuts: what leaves is.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        in_channels: int,
        out_channels: int,
        kernel: int = 3,
        gathers: bool = False,
        cuts: bool = False,
    ) -> None:
        self._ctx = ctx
        self._kernel = kernel
        self._gathers = gathers
        self._in = in_channels
        self._out = out_channels // (ctx.tp if cuts else 1)
        weight = weights.take(f"{name}.weight", (out_channels, in_channels, kernel, kernel))
        bias = weights.take(f"{name}.bias", (out_channels,))[None, None, None]
        if kernel == 1:
            self._weight = ctx.put(weight[:, :, 0, 0].t()[None, None], tp_dim=3 if cuts else None)
            self._bias = ctx.put(bias, tp_dim=3 if cuts else None)
        else:
            self._host = [ctx.host(weight, tp_dim=0 if cuts else None), ctx.host(bias, tp_dim=3 if cuts else None)]
            self._prepared: dict[tuple[int, ...], _Prepared] = {}

    def __call__(self, x: ttnn.Tensor, shards: ImageShards) -> ttnn.Tensor:
        """Rows (B, 1, N, O)."""
        if self._gathers:
            x = gather_features(self._ctx, x)
        if self._kernel == 1:
            return ttnn.linear(x, self._weight, bias=self._bias, compute_kernel_config=self._ctx.linear_config)
        image = to_image(zero_padding(self._ctx, x, shards), shards) if x.layout == ttnn.TILE_LAYOUT else x
        image, padding = exchange_halo(self._ctx, image, shards, by=self._kernel // 2)
        rows = self._convolve(image, padding)
        return ttnn.reshape(rows, (image.shape[0], 1, -1, self._out))

    def _convolve(self, image: ttnn.Tensor, padding: tuple[int, int]) -> ttnn.Tensor:
        """(1, 1, B N, O); the first image of a size leaves weights on the device in the order that ttnn chose."""
        prepared = self._prepared.get(tuple(image.shape))
        weight, bias = (prepared.weight, prepared.bias) if prepared else self._host
        out, (weight, bias) = ttnn.conv2d(
            input_tensor=image,
            weight_tensor=weight,
            bias_tensor=bias,
            device=self._ctx.device,
            in_channels=self._in,
            out_channels=self._out,
            batch_size=image.shape[0],
            input_height=image.shape[1],
            input_width=image.shape[2],
            kernel_size=(self._kernel, self._kernel),
            padding=padding,
            dtype=self._ctx.dtype,
            conv_config=ttnn.Conv2dConfig(weights_dtype=self._ctx.dtype),
            compute_config=self._ctx.linear_config,
            return_weights_and_bias=True,
        )
        self._prepared[tuple(image.shape)] = _Prepared(weight, bias)
        return out


class CausalConv3d:
    """Convolution of rows (B, 1, N, C) of a video, causal in time.

    Args:
        kernel: (time, space).
        before: what stands before the first frame: ``zeros``, or the first frame itself, repeated (``first``).
        border: what stands around a frame, see :func:`tt_impl.parallel.halo.exchange_halo`.
    """

    def __init__(
        self,
        weights: Weights,
        ctx: Context,
        name: str,
        *,
        in_channels: int,
        out_channels: int,
        kernel: tuple[int, int] = (3, 3),
        before: Literal["zeros", "first"] = "zeros",
        border: Literal["zeros", "edge"] = "zeros",
    ) -> None:
        self._ctx = ctx
        self._name = name
        self._before = before
        self._border = border
        self._time, self._space = kernel
        self._linear: list[ttnn.Tensor] = []
        weight = weights.take(f"{name}.weight", (out_channels, in_channels, kernel[0], kernel[1], kernel[1]))
        bias = weights.take(f"{name}.bias", (out_channels,))
        if kernel == (1, 1):
            self._linear = [ctx.put(weight.flatten(1).t()[None, None]), ctx.put(bias[None, None, None])]
        else:
            self._conv = Conv3d(ctx, weight, bias)

    def __call__(self, x: ttnn.Tensor, shards: ImageShards, stream: Stream) -> ttnn.Tensor:
        """Rows (B, 1, N, O)."""
        if self._linear:
            weight, bias = self._linear
            return ttnn.linear(x, weight, bias=bias, compute_kernel_config=self._ctx.linear_config)
        images = to_image(zero_padding(self._ctx, x, shards), shards)
        padding = (0, 0)
        if self._space > 1:
            images, padding = exchange_halo(self._ctx, images, shards, by=self._space // 2, border=self._border)
        video = ttnn.reshape(images, (x.shape[0], -1, *tuple(images.shape)[1:]))
        if self._time > 1:
            video = self._with_past(video, stream)
        return self._conv(video, padding=(0, *padding), mode="replicate" if self._border == "edge" else "zeros")

    def _with_past(self, video: ttnn.Tensor, stream: Stream) -> ttnn.Tensor:
        """Put the frames that came before in front of a video, and leave its own last ones for the next chunk."""
        length = self._time - 1
        past = stream.past.get(self._name)
        if past is not None:
            before = [past]
        elif self._before == "first":
            before = [video[:, :1]] * length
        else:
            shape = (video.shape[0], length, *tuple(video.shape)[2:])
            before = [ttnn.zeros(shape, dtype=video.dtype, layout=video.layout, device=self._ctx.device)]
        video = ttnn.concat([*before, video], dim=1)
        stream.past[self._name] = video[:, video.shape[1] - length :]
        return video
