"""Convolutions of images cut by rows and columns: the neighbours' borders come first, then the arithmetic.

    rows (tiles) --padding to zero--> image (row-major) --halo of kernel // 2--> ttnn.conv2d --> rows (tiles)

    in channels, where the tp axis holds those: column-parallel

        x (channels of 0) --.                   .-- W[out channels of 0] --> out channels of 0
                            |-- all_gather --> x
        x (channels of 1) --'                   '-- W[out channels of 1] --> out channels of 1

A convolution of 1 is a linear on rows, and needs no border. Otherwise each device holds the whole kernel.

Legend: B samples, N local pixels, H and W local rows and columns, C channels, O channels out.
"""

from __future__ import annotations

from dataclasses import dataclass

import ttnn

from refsim.checkpoint import Weights
from tt_impl.parallel.context import Context
from tt_impl.parallel.halo import ImageShards, exchange_halo, to_image, zero_padding
from tt_impl.parallel.tensor import gather_features


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
        self._ctx, self._kernel, self._gathers = ctx, kernel, gathers
        self._in, self._out = in_channels, out_channels // (ctx.tp if cuts else 1)
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
